"""What NVML tells of a device, from the worker to metrics, weftctl and weft-bench: the emulated CUDA backend beside an NVML of the tests."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from weftd import BUILD, Skip, Weftd, main, program


def metrics(d):
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in d.request("GET", "/metrics")[2].splitlines()
            if line.startswith("weft_device_")}


def test_the_device_in_metrics_and_programs():
    module = BUILD / "tests" / "engine" / "cuda" / "weft-cuda.so"
    nvml = BUILD / "tests" / "daemon" / "nvml"
    if not module.exists():
        raise Skip("the emulated CUDA backend was not built")
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        for file in (program("weftd"), module):
            shutil.copy(file, folder)
        with Weftd("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048", path=os.path.join(folder, "weftd"),
                   env={"LD_LIBRARY_PATH": str(nvml)}) as d:
            m = metrics(d)
            assert m["weft_device_memory_bytes"] == 2 ** 37 and m["weft_device_memory_used_bytes"] == 2 ** 36, m
            assert m["weft_device_power_watts"] == 312 and m["weft_device_clock_hertz"] == 1.98e9, m
            assert m["weft_device_temperature_celsius"] == 54 and m["weft_device_throttled"] == 0, m
            out = pathlib.Path(folder) / "result.json"
            subprocess.run([program("weft-bench"), "serve", "--url", f"http://127.0.0.1:{d.port}", "--clients", "2", "--duration", "4",
                            "--prompt-tokens", "8", "--output-tokens", "8", "--json", out], check=True, stdout=subprocess.DEVNULL)
            r = json.loads(out.read_text())
            assert r["energy_joules"] > 0 and r["energy_joules"] % 300 == 0, r
            assert abs(r["joules_per_output_token"] * r["output_tokens"] - r["energy_joules"]) < 1e-6, r
            text = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], check=True, capture_output=True, text=True).stdout
            assert "device    64.0 of 128.0 GiB used; 312 W, 1980 MHz, 54 C" in text and "J a token of output" in text, text


def test_no_device_is_no_line():
    with Weftd() as d:
        d.complete("a", max_tokens=1)
        assert set(metrics(d).values()) == {0}
        text = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], check=True, capture_output=True, text=True).stdout
        assert "device" not in text, text


main(globals())

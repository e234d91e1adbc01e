"""Helpers of the tests of pictures: files, a daemon with a vision model, counters."""
import base64
import re
import time

from weftd import BACKEND, DATA, Weftd, wait_until

FOLDER = DATA / "golden-vision"
FLAGS = ("--max-context", "2048", "--kv-pages", "128", "--backend", BACKEND)


def picture(path):
    return base64.b64encode((FOLDER / path).read_bytes()).decode()


def uri(path):
    return "data:image/png;base64," + picture(path)


def started_at(model, *flags):
    return Weftd(*FLAGS, *flags, model=str(model))


def started(name, *flags):
    return started_at(FOLDER / f"{name}.gguf", *flags)


def metrics(d):
    text = d.request("GET", "/metrics")[2]
    return text if isinstance(text, str) else text.decode()


def pictures_total(d):
    """Returns the number of files that were decoded, and that were found in the cache."""
    text = metrics(d)
    return [int(re.search(r'weft_pictures_total\{result="%s"\} (\d+)' % what, text).group(1)) for what in ("decoded", "known")]


def counted(d, name):
    return int(re.search(rf"^weft_{name}\S* (\d+)", metrics(d), re.M).group(1))


def settled(d, n):
    """Waits until @n pictures are computed and checks that no more are. The worker reports its counters
    periodically."""
    wait_until("pictures are computed", lambda: counted(d, "pictures_computed_total") >= n)
    time.sleep(0.5)
    assert counted(d, "pictures_computed_total") == n, metrics(d)


def post(d, path, body):
    status, _, answer = d.request("POST", path, body)
    assert status == 200, (path, status, answer)
    return answer

"""Reads cubins: kernels, their registers and shared memory, and each instruction with the functions that it was inlined
from. No disassembler is needed: an instruction of sm_80 and later has 16 bytes, the lowest 12 bits are its operation.
"""
import struct

MMA, BRANCH, LOCAL_LOAD, LOCAL_STORE = 0x23C, 0x947, 0x983, 0x387
WGMMA = 0xDF0  # the variant with A in registers
BYTES_MMA = 0x237
STORE = 0x986  # to global memory
CLEAR = 0x805  # two registers, among other uses
RESERVED_SHARED = 1024  # from sm_90 on it is included in a kernel's own
REGISTERS, THREADS = 0x2F, 0x05  # attributes of .nv.info


class Kernel:
    def __init__(self, name, arch, code, calls):
        self.name, self.arch = name, arch
        self.calls = calls  # for each instruction the mangled names of the inlined functions, innermost first
        self.words = [int.from_bytes(code[i : i + 16], "little") for i in range(0, len(code), 16)]
        self.operations = [w & 0xFFF for w in self.words]
        self.registers = self.threads = self.shared = 0

    def count(self, *operations):
        return sum(o in operations for o in self.operations)

    def back(self):
        """Returns (first, last) of all loops with matrix products, the shortest first."""
        found = []
        for i, w in enumerate(self.words):
            if w & 0xFFF == BRANCH and (to := self.target(i)) < i and self.multiplies(to, i):
                found.append((to, i))
        return sorted(found, key=lambda l: l[1] - l[0])

    def multiplies(self, first, last):
        return not {MMA, WGMMA, BYTES_MMA}.isdisjoint(self.operations[first : last + 1])

    def loops(self):
        """Returns the innermost ones of these loops."""
        found = self.back()
        inner = []
        for a, b in found:
            if all(b < c or a > d for c, d in inner):
                inner.append((a, b))
        return sorted(inner)

    def within(self, first, last):
        """Returns (first, last) of the loops in this one without products."""
        found = [(self.target(i), i) for i in range(first, last) if self.operations[i] == BRANCH]
        return [(a, b) for a, b in found if first <= a < b and not self.multiplies(a, b)]

    def whole(self):
        """Returns the innermost loop that contains all products, or none."""
        n = self.count(MMA, WGMMA)
        return [l for l in self.back() if sum(o in (MMA, WGMMA) for o in self.operations[l[0] : l[1] + 1]) == n][:1]

    def target(self, i):
        """Returns the target of branch @i: its offset is in units of four bytes, from the next instruction."""
        word = self.words[i]
        way, bits = word >> 34 & 0xFFFFFFFFFFFF, 48
        if self.arch >= 90:
            way, bits = word >> 16 & 0xFF | way << 8, 56
        return i + 1 + (way - (way >> bits - 1 << bits)) // 4


class Reader:
    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def leb(self, signed=False):
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value


def string_at(data, at):
    return data[at : data.index(b"\0", at)].decode()


def sections_of(data):
    """Returns name -> (index, size, contents, sh_info); NOBITS sections have no contents."""
    start, (count, names) = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
    text = data[headers[names][4] :]
    return {
        string_at(text, h[0]): (i, h[5], b"" if h[1] == 8 else data[h[4] : h[4] + h[5]], h[7])
        for i, h in enumerate(headers)
    }


def rows_of(lines, relocations):
    """Returns the line table: for each section of code, by its symbol, rows (address, function's name, row of the call)."""
    r, found = Reader(lines), {}
    while r.at < len(lines):
        length, _, prologue, step, _, base, span, first = r.take("IHIBBbBB")
        end, program = r.at + length - 11, r.at + prologue - 5
        r.at = program
        rows, address, context, name, symbol = [], 0, 0, 0, None
        while r.at < end:
            op = r.take("B")
            if op == 0:
                size, begin = r.leb(), r.at
                kind = r.take("B")
                if kind == 1:  # the end of a sequence
                    found[symbol] = rows + [(address, 0, 0)]
                    rows, address, context, name = [], 0, 0, 0
                elif kind == 2:
                    symbol, address = relocations.get(r.at), r.take("Q")
                elif kind == 0x90:  # inlined: row of the call, name
                    context, name = r.leb(), r.leb()
                elif kind == 0x91:
                    name = r.leb()
                r.at = max(r.at, begin + size)
            elif op >= first:
                address += (op - first) // span * step
                rows.append((address, name, context))
            elif op == 1:
                rows.append((address, name, context))
            elif op == 2:
                address += r.leb() * step
            elif op == 3:
                r.leb(signed=True)
            elif op in (4, 5):
                r.leb()
            elif op == 8:
                address += (255 - first) // span * step
            elif op == 9:
                address += r.take("H")
    return found


def calls_of(rows, names, n):
    """Returns the functions of instructions 0 .. n - 1."""
    chains, out, at = {}, [], 0

    def chain(i):
        if i not in chains:
            _, name, context = rows[i]
            chains[i] = ((string_at(names, name),) if name else ()) + (chain(context - 1) if context else ())
        return chains[i]

    for i in range(n):
        while at + 1 < len(rows) and rows[at + 1][0] <= 16 * i:
            at += 1
        out.append(chain(at) if rows else ())
    for i in range(1, n - 1):
        if not out[i] and out[i - 1] and out[i + 1]:  # a move that the compiler adds within inlined code
            out[i] = out[i - 1]
    return out


NONE = (0, 0, b"", 0)


def kernels_of(path, arch):
    """Returns the kernels of a cubin for sm_@arch; functions are known if it was compiled with -lineinfo."""
    data = open(path, "rb").read()
    sections = sections_of(data)
    symbols, names = sections[".symtab"][2], sections[".strtab"][2]
    symbol = [struct.unpack_from("<IBBHQQ", symbols, i) for i in range(0, len(symbols), 24)]
    part = {index: name for name, (index, _, _, _) in sections.items()}
    relocations, kernels = {}, {}
    for kind, size in ((".rel", 16), (".rela", 24)):
        moved = sections.get(kind + ".debug_line", NONE)[2]
        for i in range(0, len(moved), size):
            where, what = struct.unpack_from("<QQ", moved, i)
            relocations[where] = part[symbol[what >> 32][3]]
    rows = rows_of(sections.get(".debug_line", NONE)[2], relocations)
    inlined = sections.get(".debug_str", NONE)[2]
    for name, (_, _, code, _) in sections.items():
        if not name.startswith(".text."):
            continue
        k = Kernel(name[6:], arch, code, calls_of(rows.get(name, []), inlined, len(code) // 16))
        k.shared = sections.get(".nv.shared." + name[6:], (0, 0))[1]
        if arch >= 90 and k.shared:
            k.shared -= RESERVED_SHARED
        kernels[k.name] = k
    read_info(kernels, sections, symbol, names)
    return list(kernels.values())


def attributes(data):
    r = Reader(data)
    while r.at < len(data):
        form, kind, size = r.take("BBH")
        if form == 4:
            yield kind, data[r.at : r.at + size]
            r.at += size


def read_info(kernels, sections, symbol, names):
    for kind, value in attributes(sections[".nv.info"][2]):
        if kind == REGISTERS:
            index, registers = struct.unpack_from("<II", value)
            k = kernels.get(string_at(names, symbol[index][0]))
            if k:
                k.registers = registers
    for k in kernels.values():
        for kind, value in attributes(sections[".nv.info." + k.name][2]):
            if kind == THREADS:
                k.threads = struct.unpack_from("<I", value)[0]

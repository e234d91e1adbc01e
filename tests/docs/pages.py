"""Markdown pages of the project, taken apart for check_docs.py: lines of prose, code blocks, links, anchors, code spans."""
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


class Block:
    """A fenced block: `info` is what follows the fence, as "sh run"; `line` is the number of its first line."""

    def __init__(self, info, line):
        self.info, self.line, self.lines = info.split(), line, []

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


class Page:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.blocks, self.prose, self.tables, self.headings = [], [], [], []
        block = None
        for at, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                if block is None:
                    block = Block(line.strip().strip("`"), at + 1)
                    self.blocks.append(block)
                else:
                    block = None
            elif block is not None:
                block.lines.append(line)
            elif line.startswith("|"):
                self.tables.append((at, line))
            elif line.startswith("#"):
                self.headings.append(line.lstrip("#").strip())
            elif not line.startswith("    "):
                self.prose.append((at, line))

    @property
    def outside_blocks(self):
        return sorted(self.prose + self.tables + [(0, h) for h in self.headings])

    def anchors(self):
        """Returns the anchors of the headings, as GitHub makes them."""
        found = {}
        for heading in self.headings:
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            found[anchor] = found.get(anchor, -1) + 1
        return {a if i == 0 else f"{a}-{i}" for a, n in found.items() for i in range(n + 1)}

    def links(self):
        """Yields (line, target) of each link and image outside code."""
        for at, line in self.outside_blocks:
            for m in re.finditer(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "``", line)):
                yield at, m[1]

    def spans(self):
        """Yields (line, text) of each code span; the first column of a table is left out, see first_columns()."""
        for at, line in self.outside_blocks:
            for m in re.finditer(r"`([^`]+)`", line):
                yield at, m[1]

    def rows(self):
        """Yields (line, cells) of each row of a table, with the pipes of code spans kept."""
        for at, line in self.tables:
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not all(re.fullmatch(r":?-+:?", c) for c in cells):
                yield at, cells


def all_pages():
    paths = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    return [Page(str(p.relative_to(ROOT)), p.read_text(encoding="utf-8")) for p in paths]

import gzip
import io

import pytest

from zoo_core.input_lines import lines_of, read_lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\n\r\nb", ["a", "", "b"]),
        (b"\xef\xbb\xbfa\rb\r", ["a", "b"]),
        (b"a\rb\r\rc", ["a", "b", "", "c"]),
        (b"a\rb\nc\n", ["a\rb", "c"]),  # one "\n": "\r" is a character
        ("a\u2028b\x85c\n".encode(), ["a\u2028b\x85c"]),
        (b"\n", [""]),
        (b"", []),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_read_lines_ends_lines_at_line_feeds_or_without_any_at_carriage_returns(tmp_path, content, lines, is_packed):
    file = tmp_path / "lines"  # gzip is known by its first bytes, not by a name
    file.write_bytes(gzip.compress(content) if is_packed else content)
    assert list(read_lines(file)) == lines
    assert list(lines_of(io.BytesIO(content), "standard input")) == lines

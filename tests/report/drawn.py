"""What the charts of a page say, read from the images in it."""

import re
from base64 import b64decode
from html import unescape

_ADDRESS = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")


def svgs(text: str) -> list[str]:
    """The SVG of each image in an address or a page, in order."""
    return [b64decode(found).decode() for found in _ADDRESS.findall(text)]


def texts(text: str) -> list[str]:
    """The texts of all images in an address or a page."""
    found = (re.findall(r"<text [^>]*>([^<]*)</text>", svg) for svg in svgs(text))
    return [unescape(each) for part in found for each in part]

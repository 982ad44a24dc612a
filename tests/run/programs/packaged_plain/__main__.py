"""Print how a module run with -m sees itself."""

import sys

from . import part
from .part import ANSWER

print(sys.argv, __file__, __name__, __package__, __spec__.name, part.__name__, ANSWER, sys.path)
sys.exit(11)

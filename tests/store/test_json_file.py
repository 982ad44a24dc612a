"""Documents as commands print them."""

import json
from typing import Any

import pytest

from stepscope.store.json_file import json_text

WHOLE: dict[str, Any] = {
    "numbers": [0, -1, 2**62, 0.5, 1e-5, 1e22, -0.0, True, None],
    "empty": [[], {}, ""],
    "nested": {"a": [{"b": [[1], [2, 3]]}]},
    "words": ["é", '"\\\n\0', "\U0001f600", "</script>"],
}


@pytest.mark.parametrize("document", [WHOLE, [], {}, 7, "x", ["a file \ud800 named oddly"]])
def test_a_document_is_printed_as_python_indents_it(document: object) -> None:
    assert json_text(document) == json.dumps(document, indent=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_not_printed(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": [value]})

from typing import Any

from numpy.typing import NDArray

def take(capsule: Any, trusted: bool) -> tuple[NDArray[Any], str]: ...

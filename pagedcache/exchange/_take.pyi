from typing import Any

from numpy.typing import NDArray

def take(capsule: Any, owner_type: type) -> tuple[NDArray[Any], str]: ...

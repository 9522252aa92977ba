"""Print the oldest versions that pyproject.toml allows, as constraints for pip."""

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
    if match := re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement):
        print(f"{match[1]}=={match[2]}")

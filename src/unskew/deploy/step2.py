"""Step 2 after the reply has left: ``python -m unskew.deploy.step2 STATE``.

Should it be killed, the mark that Step 2 is due stays, and the next use of the state does it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from unskew.deploy._device import Device
from unskew.deploy._files import locked


def main() -> None:
    folder = Path(sys.argv[1])
    with locked(folder):
        Device.open(folder).step2()


if __name__ == "__main__":
    main()

"""A launcher over a driver that records what it is asked for, so that launching is tested without a GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import attrs

from turret import codec
from turret.native import device
from turret.native.table import KernelBinary, LaunchTable


@attrs.frozen(eq=False)
class FakeDriver:
    """The launcher, and the log and switches of the driver under it."""

    launcher: ctypes.CDLL
    driver: ctypes.CDLL
    folder: Path

    def log(self) -> list[str]:
        """Lines since the last ``clear``."""
        self.driver.fake_log.restype = ctypes.c_char_p
        return self.driver.fake_log().decode().splitlines()

    def clear(self) -> None:
        self.driver.fake_clear()

    def write(self, table: LaunchTable, images: dict[str, bytes]) -> Path:
        """A launch table with its binaries in a folder of its own."""
        folder = self.folder / f"plan{len(list(self.folder.glob('plan*')))}"
        folder.mkdir()
        for name, image in images.items():
            (folder / name).write_bytes(image)
        (folder / device.TABLE).write_text(codec.dumps(table))
        return folder / device.TABLE

    def library(self, table: LaunchTable, images: dict[str, bytes], index: int = 0) -> device.DeviceLibrary:
        return device.DeviceLibrary(self.write(table, images), index, self.launcher)


def kernel(name: str, *, shared: int = 0, threads: int = 128, **further: object) -> KernelBinary:
    return KernelBinary(name, f"{name}.cubin", threads, shared, **further)

"""A launcher over a driver that records what it is asked for, so that launching is tested without a GPU."""

from __future__ import annotations

import ctypes
import hashlib

import attrs

from turret.plan.launch import device
from turret.plan.launch.table import KernelBinary, LaunchTable
from turret.storage import codec
from turret.storage.artifact_cache import process_cache
from turret.storage.libraries import Library, find_library, keep_library


@attrs.frozen(eq=False)
class FakeDriver:
    """The launcher, and the log and switches of the driver under it."""

    launcher: ctypes.CDLL
    driver: ctypes.CDLL

    def log(self) -> list[str]:
        """Lines since the last ``clear``."""
        self.driver.fake_log.restype = ctypes.c_char_p
        return self.driver.fake_log().decode().splitlines()

    def clear(self) -> None:
        self.driver.fake_clear()

    def write(self, table: LaunchTable, images: dict[str, bytes]) -> Library:
        """A launch table with its binaries, where plans find it."""
        files = {device.TABLE: codec.dumps(table).encode(), **images}
        key = hashlib.sha256(repr(files).encode()).hexdigest()
        keep_library(process_cache, key, files)
        return Library(key, device.TABLE)

    def library(
        self, table: LaunchTable, images: dict[str, bytes], index: int = 0, slots: int = 3, sizes: int = 2
    ) -> device.DeviceLibrary:
        """The segments of a table, for so many slots and sizes."""
        return device.DeviceLibrary(find_library(self.write(table, images)), None, index, slots, sizes, self.launcher)


def kernel(name: str, *, shared: int = 0, threads: int = 128, **further: object) -> KernelBinary:
    return KernelBinary(name, f"{name}.cubin", threads, shared, **further)

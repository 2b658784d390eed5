"""How Comity writes files: without following links, and never more open than their folder.

Folders can come from anywhere. A link in one of them can lead to any file of the user, so no file
is ever written through a link:

- A file that is replaced (`write_atomically`) is first written to a new file with an unpredictable
  name, in a folder that is opened once.
- A file that is written anew (`create_file`) takes the place of whatever has its name.
- A file that grows or is cut (`open_to_append`, `open_to_update`) must have one name only.
- A folder inside a folder (`make_folder`) must be no link.

`check_no_links` refuses a folder with links before anything in it is read. A new file can be read
by nobody who cannot read its folder, so everything in a folder of mode 0700 is private, whatever
the umask is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from comity.errors import UsageError

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
PRIVATE_UMASK = 0o077
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.new")
"""The names of files that `write_atomically` has not renamed yet."""
HAS_DESCRIPTORS = {os.open, os.rename, os.unlink, os.mkdir} <= os.supports_dir_fd
"""Whether this system can open, rename and remove files relative to an open folder."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Do not follow a link, do not wait for a pipe, and do not translate line ends."""


# Writing.


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Replace a file atomically. A power failure afterwards does not restore the old content.

    If `path` is a link, the link is replaced, and the file that it leads to stays as it is.

    Args:
        path: the file
        content: bytes, or text to be written as UTF-8
        private: allow only the user to read the file, whatever its folder allows
    """
    blob = content.encode() if isinstance(content, str) else content
    temporary = f".{secrets.token_hex(8)}.new"
    with _names_in(path), _open_folder(path.parent) as folder:
        try:
            with os.fdopen(folder.open(temporary, NEW, private), "wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            folder.rename(temporary, path.name)
        except BaseException:
            with contextlib.suppress(OSError):
                folder.unlink(temporary)
            raise
        folder.flush()


def create_file(path: Path) -> BinaryIO:
    """Open a new file for writing. A file or link with the same name is removed first."""
    with _names_in(path), _open_folder(path.parent) as folder:
        try:
            descriptor = folder.open(path.name, NEW)
        except FileExistsError:
            folder.unlink(path.name)
            descriptor = folder.open(path.name, NEW)
    return os.fdopen(descriptor, "wb")


def open_to_append(path: Path, *, create: bool = False) -> BinaryIO:
    """Open a file to append to it.

    Raises `UsageError` if `path` is a link, or if the file has another name (a hard link).
    """
    return os.fdopen(_open_own(path, os.O_WRONLY | os.O_APPEND, create), "ab")


def open_to_update(path: Path, *, create: bool = False) -> BinaryIO:
    """Open a file to read, write and cut it.

    Raises `UsageError` if `path` is a link, or if the file has another name (a hard link).
    """
    return os.fdopen(_open_own(path, os.O_RDWR, create), "r+b")


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, would survive a power failure."""
    if os.name != "posix":  # other systems can flush only files that are open for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Folders.


def make_folder(path: Path) -> None:
    """Create a folder inside a folder of Comity, unless it exists. It survives a power failure.

    Raises `UsageError` if there is a link or a file with its name.
    """
    with _names_in(path), _open_folder(path.parent) as folder:
        try:
            folder.mkdir(path.name)
            folder.flush()
        except FileExistsError:
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise UsageError(
                    f"{path} is a link or a file, but must be a folder: remove it."
                ) from None


def make_private_folder(path: Path) -> None:
    """Create a folder that only the user can open, or close one that exists to all others. A new
    one survives a power failure.
    """
    if not path.exists():
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        flush_to_disk(path.parent)
    with contextlib.suppress(PermissionError):  # it belongs to somebody else
        path.chmod(PRIVATE_FOLDER)


def close_to_others(folder: Path) -> None:
    """Take all permissions on a folder, and on everything in it, from everybody but the user."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & PRIVATE_FOLDER)


def check_no_links(folder: Path) -> None:
    """Refuse a folder that contains a symbolic link, a pipe or a device at any depth.

    The folder itself may be a link: users put their folders on other disks.
    """
    folders: list[str | Path] = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    kind = "a symbolic link" if entry.is_symlink() else "a pipe or a device"
                    raise UsageError(
                        f"{folder} is not opened, because {entry.path} is {kind}, through which"
                        " other files could be read or changed: remove it, or put a regular file"
                        " in its place."
                    )


def path_inside(folder: Path, *names: str) -> Path:
    """Return the path of something inside a folder; refuse it if one of the names is a link."""
    path = folder
    for name in names:
        path /= name
        if path.is_symlink():
            raise UsageError(
                f"{path} is a symbolic link, through which files outside {folder} could be changed:"
                " remove it, or choose another --out."
            )
    return path


def remove_temporary_files(folder: Path) -> None:
    """Remove what processes that were killed in `write_atomically` left in a folder."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry)


# Permissions.


def readers_of(path: Path, group: int) -> int:
    """Who can read a file, or everything in a folder, as the permissions of a folder: 0o777 for
    everybody, 0o770 for members of `group`, and 0o700 for the owner.
    """
    path = path.resolve()
    everybody, members = True, True
    for parent in path.parents:
        mode = parent.stat().st_mode
        everybody, members = everybody and bool(mode & 0o001), members and bool(mode & 0o010)
    for inner in (path, *path.rglob("*")):
        status = inner.stat()
        needed = 0o5 if stat.S_ISDIR(status.st_mode) else 0o4
        everybody = everybody and status.st_mode & needed == needed
        members = members and status.st_gid == group and status.st_mode >> 3 & needed == needed
    if everybody:
        return 0o777
    return 0o770 if members else 0o700


# Internals.


class _Folder:
    """An open folder. Without descriptors of folders, files are named by their paths."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path, self._descriptor = path, descriptor
        status = os.fstat(descriptor) if descriptor is not None else path.stat()
        self._mode = stat.S_IMODE(status.st_mode)

    def _at(self, name: str) -> str:
        return name if self._descriptor is not None else str(self._path / name)

    def open(self, name: str, flags: int, private: bool = False) -> int:
        mode = PRIVATE_FILE if private else PRIVATE_FILE | self._mode & 0o666
        return os.open(self._at(name), flags | NO_LINK, mode, dir_fd=self._descriptor)

    def mkdir(self, name: str) -> None:
        os.mkdir(self._at(name), PRIVATE_FOLDER | self._mode & 0o777, dir_fd=self._descriptor)

    def rename(self, name: str, to: str) -> None:
        os.replace(
            self._at(name),
            self._at(to),
            src_dir_fd=self._descriptor,
            dst_dir_fd=self._descriptor,
        )

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def flush(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)


@contextlib.contextmanager
def _open_folder(path: Path) -> Iterator[_Folder]:
    if not HAS_DESCRIPTORS:
        yield _Folder(path, None)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _names_in(path: Path) -> Iterator[None]:
    """Errors of the system name the file that was to be written."""
    try:
        yield
    except OSError as why:
        why.filename, why.filename2 = str(path), None
        raise


def _open_own(path: Path, flags: int, create: bool) -> int:
    """Open an existing file for a change, or create it, if it is a regular file with one name."""
    try:
        if create:
            with _names_in(path), _open_folder(path.parent) as folder:
                descriptor = folder.open(path.name, flags | os.O_CREAT)
        else:
            descriptor = os.open(path, flags | NO_LINK)
    except OSError as why:
        if why.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise _not_own(path, "it is a link or a pipe") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        is_regular = stat.S_ISREG(status.st_mode)
        raise _not_own(path, "it has another name, too" if is_regular else "it is no regular file")
    return descriptor


def _not_own(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} is not written to, because {reason}: put a copy of the file in its place."
    )

"""Records of an ArrayRecord file by number."""

from pathlib import Path
from typing import Any


class Records:
    """The records of a file, each read alone; it can be pickled, for processes that read.

    `array_record`'s own source asks its reader for lists of numbers, which takes time that grows with the file whatever the list:
    15 ms in one of 850,000 records, where a range of one takes 10 us (measured).

    Raises:
      ValueError: there are none, as in a file that is cut short.
    """

    def __init__(self, file: Path):
        from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

        self.file = file
        self._reader: Any = array_record_module.ArrayRecordReader(str(file), "readahead_buffer_size:0")
        if not self._reader.ok() or not len(self):  # a damaged file has none, by its reader
            raise ValueError(f"{file}: no records")

    def __len__(self) -> int:
        return self._reader.num_records()

    def __getitem__(self, at: int) -> bytes:
        """Returns a record; raises IndexError where there is none of this number."""
        if not 0 <= at < len(self):
            raise IndexError(f"{self.file}: no record {at} of {len(self)}")
        (record,) = self._reader.read(int(at), int(at) + 1)
        return record

    def __reduce__(self) -> Any:
        return Records, (self.file,)

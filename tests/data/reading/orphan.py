"""Starts a worker that, like one of Grain's, waits without end; it keeps the file that is named open as long as it lives."""

import multiprocessing
import sys
import threading

from data.reading.batches import end_with_parent


def work(path: str) -> None:
    with open(path, "w") as file:
        end_with_parent()
        print("working", file=file, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],)).start()
    threading.Event().wait()

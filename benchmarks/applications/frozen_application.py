"""magika as an application that PyInstaller freezes: it names its recording or tuned folder itself.

It prints what `package_application.py magika` prints. `autotune record` and `autotune run` set
the two variables for any command; a frozen program has no `sitecustomize` that would read them.
"""

import os
import sys

import autotune

if folder := os.environ.get("AUTOTUNE_RECORD"):
    from autotune.applications.start import start

    start(folder)  # `autotune.record(folder)` makes a folder of its own
if folder := os.environ.get("AUTOTUNE_APPLY"):
    autotune.apply(folder)

from package_application import main

sys.argv[1:1] = ["magika"]
main()

"""What these scripts share with the benchmarks for users, which lie one folder above."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import models
import program
from inputs import file_beside, sample_cnn, workload_of
from neighbours import neighbours

__all__ = ["file_beside", "models", "neighbours", "program", "sample_cnn", "workload_of"]

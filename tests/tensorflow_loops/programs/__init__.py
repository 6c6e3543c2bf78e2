"""Small programs in the manner of public ones, one file for each subject.

The import of a file adds its programs to the table.
"""

from tensorflow_loops.programs import (
    arguments,
    branches,
    changes_in_python,
    data_sets,
    fields_of_use,
    iterations,
    published_methods,
    random_numbers,
    states,
    training_loops,
)
from tensorflow_loops.table import PROGRAMS

__all__ = [
    "PROGRAMS",
    "arguments",
    "branches",
    "changes_in_python",
    "data_sets",
    "fields_of_use",
    "iterations",
    "published_methods",
    "random_numbers",
    "states",
    "training_loops",
]

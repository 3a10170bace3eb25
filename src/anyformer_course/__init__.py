"""The course: five lectures on Transformers that you can run.

`show` computes a worked example on your own text. `lessons/` has one page per lecture, in the order of its slides.
anyformer never imports this package.
"""

from anyformer_course.shown import Shown, Table, show

__all__ = ["Shown", "Table", "show"]

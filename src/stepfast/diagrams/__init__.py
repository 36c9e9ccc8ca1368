"""Drawings of runs and graphs: pure functions from values to SVG. The command line writes them to files, the console
puts them into its pages.

Colours are those of ``diagrams.css``, by class: the console links it, a file carries it inside.
"""

from .graph_svg import graph_svg
from .svg import Markup, standalone, stylesheet
from .timeline import Timeline, lay_out
from .timeline_svg import timeline_svg

__all__ = ["Markup", "Timeline", "graph_svg", "lay_out", "standalone", "stylesheet", "timeline_svg"]

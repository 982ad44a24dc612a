"""A renderer of another package: the titles of a report's sections."""

from stepscope.report.render.formats import Renderer, Report


class Outline(Renderer):
    """A line per section."""

    name = "outline"
    endings = (".outline",)
    purpose = "the titles of its sections"
    piped = True

    def text(self, report: Report, part: str | None) -> str:
        """The verdict, then the titles."""
        titles = [f"- {section.title}" for section in report.story.sections]
        return "\n".join([report.story.verdict, *titles, ""])

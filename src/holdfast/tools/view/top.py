"""``holdfast top``: the ranks of a job in a terminal, a line each, a look a second."""

from __future__ import annotations

import asyncio
import signal
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from holdfast.base.pure.printable import one_line, printable
from holdfast.tools.view.job_view import JobView, RankView
from holdfast.tools.view.merged_stacks import merged
from holdfast.tools.view.newest import Viewed
from holdfast.tools.view.words import (
    COLUMNS,
    SORTS,
    cells,
    headline,
    incident_line,
    newest,
    snapshot_line,
    verdict_line,
)

_LOOK_S = 1.0
_NEAR = 0.8
"""Share of a timeout from which a rank is shown in yellow."""
_NEWS_SHARE = 5
"""Incidents may take this part of the height, and so may events."""
_STYLES = {"overdue": "bold red", "failed": "red", "gone": "red", "completed": "dim"}


class Stacks(ModalScreen[None]):
    """The stacks of some ranks."""

    CSS = "Stacks > VerticalScroll { margin: 1 2; border: round $accent; background: $surface; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "app.pop_screen", "Back"),
    ]

    def __init__(self, texts: dict[int, str]) -> None:
        super().__init__()
        self._texts = texts
        self._merged = merged(texts) if len(texts) > 1 else ""

    def compose(self) -> ComposeResult:
        """One text, scrolled by the arrow keys."""
        parts = [self._merged] if self._merged else []
        parts += [f"── rank {rank}\n{text}" for rank, text in self._texts.items()]
        text = printable("\n\n".join(parts))
        with VerticalScroll():
            yield Static(Text(text))
        yield Footer()


class Top(App[None]):
    """The application."""

    TITLE = "holdfast top"
    CSS = """
    #headline { height: auto; max-height: 3; background: $accent; color: $text; padding: 0 1; }
    #verdict { height: auto; max-height: 4; color: $text-error; text-style: bold; padding: 0 1; }
    #news { height: auto; border-top: solid $accent; padding: 0 1; }
    DataTable { height: 1fr; }
    DataTable > .datatable--cursor { background: $foreground 12%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("enter,d", "stacks", "Stacks", key_display="enter", priority=True),
        Binding("D", "all_stacks", "All stacks"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, job: Viewed) -> None:
        super().__init__()
        self._job = job
        self._view = JobView()
        self._order = list(SORTS)
        self._shown: list[int] = []

    def compose(self) -> ComposeResult:
        """Headline, ranks, news."""
        yield Static(id="headline")
        yield Static(id="verdict")
        table: DataTable[Text] = DataTable(
            cursor_type="row", cursor_foreground_priority="renderable", zebra_stripes=True
        )
        table.add_columns(*COLUMNS)
        yield table
        yield Static(id="news")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Look now, and each second; signals end it as a key does, else the terminal stays raw."""
        for signum in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self.exit)
        self._look()
        self.set_interval(_LOOK_S, self._look)

    def _look(self) -> None:
        self._view = self._job.look()
        if self.screen.id == "_default":
            self._show()

    def _show(self) -> None:
        view, sort = self._view, self._order[0]
        self.query_one("#headline", Static).update(
            Text("  ".join(filter(None, [headline(view), snapshot_line(view), f"by {sort}"])))
        )
        verdict = self.query_one("#verdict", Static)
        verdict.update(Text(verdict_line(view)))
        verdict.display = view.verdict is not None
        table = self.query_one(DataTable)
        ranks = sorted(view.ranks, key=SORTS[sort])
        if (shown := [one.rank for one in ranks]) != self._shown:
            at, self._shown = table.cursor_row, shown
            table.clear()
            for one in ranks:
                table.add_row(*_row(one), key=str(one.rank))
            table.move_cursor(row=min(at, max(0, len(ranks) - 1)))
        else:
            for row, one in enumerate(ranks):
                for column, cell in enumerate(_row(one)):
                    table.update_cell_at((row, column), cell)  # type: ignore[arg-type]
        rows, columns = max(1, self.size.height // _NEWS_SHARE), max(1, self.size.width - 2)
        earlier = view.incidents[:-1]  # the last one is above
        incidents = newest([incident_line(each) for each in earlier], rows, columns)
        said = [one_line(f"{each['node']}: {each['text']}") for each in view.events]
        news = [Text(line, style="red") for line in incidents]
        news += [Text(line) for line in newest(said, rows, columns)]
        self.query_one("#news", Static).update(Text("\n").join(news))

    # ------------------------------------------------------------ keys
    def action_sort(self) -> None:
        """Order by the next thing."""
        self._order.append(self._order.pop(0))
        self._show()

    def action_stacks(self) -> None:
        """Show where the selected rank is."""
        if isinstance(self.screen, Stacks):
            self.pop_screen()
        elif self._shown:
            row = self.query_one(DataTable).cursor_row
            self.push_screen(Stacks(self._job.stacks([self._shown[row]])))

    def action_all_stacks(self) -> None:
        """Show where all ranks of this host are."""
        if self._shown and not isinstance(self.screen, Stacks):
            here = {node.node for node in self._view.nodes if node.is_here}
            ranks = [one.rank for one in self._view.ranks if one.node in here]
            if ranks:
                self.push_screen(Stacks(self._job.stacks(ranks)))
            else:
                self.notify("No rank of this job runs on this host now.")


def _row(one: RankView) -> list[Text]:
    style = _STYLES.get(one.state, "")
    if not style and (one.used or 0.0) >= _NEAR:
        style = "yellow"
    row = [Text(cell, style=style) for cell in cells(one)]
    if one.slow:
        row[-1].stylize("cyan")
    return row

"""Describes one panel as data, and builds dashboards of panels with Grafana's own library (grafana-foundation-sdk).

The library is that of Grafana 11.6. Later releases of Grafana convert such a dashboard when they load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

#: An agent that has finished a sweep in the last five minutes. The textfile collector shows the last metrics of a silent
#: agent for ever, and they say nothing about the node as it is now.
FRESH = "on (instance) (time() - fairlead_sweep_timestamp_seconds < 300)"
#: Ends the query of a count. If nothing is counted, the result is 0 as long as there are series of this name, and else no number.
ZERO = "or 0 * count({})"
NONE = ZERO.format("fairlead_build_info")
#: Each kind of panel with its width (of 24) and height.
SIZES = {"stat": (6, 4), "lines": (12, 8), "table": (12, 8), "states": (24, 6)}
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
SHORT = {"percent": "percentunit", "seconds": "s", "bytes": "bytes", "bytes_rate": "Bps", "celsius": "celsius", "watts": "watt"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Describes one panel. ``unit``: a key of ``SHORT`` or a unit of Grafana. ``legend``: the text of each line, with labels as
    ``{{label}}``. ``hidden``: the columns that a table leaves out. ``wide``: the panel has the whole width."""

    kind: str
    title: str
    text: str
    query: str
    unit: str = "short"
    legend: str = ""
    hidden: tuple[str, ...] = ()
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """Holds the panels below one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Describes one dashboard. ``variables``: the name of each variable with the query of its values. ``drains``: marks the
    time of each drain in all panels."""

    name: str
    title: str
    text: str
    rows: Sequence[Row]
    variables: Sequence[tuple[str, str]] = ()
    drains: str = ""


def as_json(described: Dashboard) -> str:
    """Return a dashboard as Grafana imports it."""
    made = dashboard.Dashboard(described.title).uid(f"fairlead-{described.name}").description(described.text)
    made = made.tags(["fairlead"]).timezone("browser").time("now-6h", "now").refresh("1m").readonly()
    made = made.with_variable(dashboard.DatasourceVariable("source").label("Data source").type("prometheus"))
    for name, query in described.variables:
        variable = dashboard.QueryVariable(name).label(name.capitalize()).datasource(SOURCE).query(query)
        made = made.with_variable(
            variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.NATURAL_ASC)
        )
    link = dashboard.DashboardLink("fairlead").type(models.DashboardLinkType.DASHBOARDS).tags(["fairlead"]).as_dropdown(True)
    made = made.link(link.keep_time(True).include_vars(True))
    if described.drains:
        marks = (
            dashboard.AnnotationQuery().name("Drains").datasource(SOURCE).enable(True).icon_color("red").expr(described.drains)
        )
        made = made.annotation(marks)
    for row in described.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(_numbered(made.build())) + "\n"


def _numbered(made: models.Dashboard) -> models.Dashboard:
    for number, panel in enumerate(made.panels or [], 1):
        panel.id_val = number
    return made


def _panel(panel: Panel):  # type: ignore[no-untyped-def]  # the builders of the library share no type
    query = prometheus.Dataquery().expr(panel.query).ref_id("A").datasource(SOURCE)
    if panel.kind == "table":
        query = query.instant().format(PromQueryFormat.TABLE)
        made = table.Panel().with_transformation(_columns(panel)).filterable(True)
    elif panel.kind == "stat":
        query = query.instant()
        made = stat.Panel()
    else:
        query = query.range()
        made = statetimeline.Panel() if panel.kind == "states" else timeseries.Panel().min(0)
    if panel.legend:
        query = query.legend_format(panel.legend)
    width, height = SIZES[panel.kind]
    made = made.title(panel.title).description(panel.text).unit(SHORT.get(panel.unit, panel.unit)).datasource(SOURCE)
    return made.with_target(query).span(24 if panel.wide else width).height(height)


def _columns(panel: Panel) -> models.DataTransformerConfig:
    """Hide the columns of a table that say nothing to a reader: the time, the metric's name and what the panel names itself."""
    hidden = ("Time", "__name__", "job", "fairlead", *panel.hidden)
    return models.DataTransformerConfig(id_val="organize", options={"excludeByName": dict.fromkeys(hidden, True)})

#!/bin/sh
# page.sh INCIDENT: needs PAGERDUTY_KEY in the environment of the launcher
jq --arg key "$PAGERDUTY_KEY" --arg node "$HOLDFAST_NODE" '{routing_key: $key,
    event_action: "trigger", payload: {summary: .reason, source: $node, severity: "warning"}}' "$1" |
    curl --silent --max-time 30 -d @- https://events.pagerduty.com/v2/enqueue

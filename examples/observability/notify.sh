#!/bin/sh
# notify.sh CHANNEL INCIDENT: needs SLACK_WEBHOOK in the environment of the launcher
text=$(head -c 2000 "$(dirname "$2")/incident.txt")
jq -n --arg text "$text" --arg channel "$1" '{text: $text, channel: $channel}' |
    curl --silent --max-time 30 -H 'Content-Type: application/json' -d @- "$SLACK_WEBHOOK"

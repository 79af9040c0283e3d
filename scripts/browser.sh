#!/bin/sh
# Sees to it that there is a Chromium for the browser tests; they fail, with their reason, where there is none.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "browser: installing Chromium"
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; then
        exit 0
    fi
fi
echo "browser: no Chromium here, so the browser tests will fail: install the package chromium, or leave them out by -m 'not browser'"

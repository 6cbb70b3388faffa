#!/bin/sh
# Serve a small index from the image pmpguard and wait until Docker calls the container healthy.
set -eu
docker volume create pmpguard-try >/dev/null
trap 'docker rm --force pmpguard-try >/dev/null 2>&1; docker volume rm pmpguard-try >/dev/null' EXIT
docker run --rm -i -v pmpguard-try:/data --entrypoint python pmpguard - < deploy/small_index.py
docker run --detach --name pmpguard-try -e PMPGUARD_TOKEN=try -p 127.0.0.1:8000:8000 -v pmpguard-try:/data \
    --health-interval 2s pmpguard
for _ in $(seq 60); do
    [ "$(docker inspect --format '{{.State.Health.Status}}' pmpguard-try)" = healthy ] && break
    sleep 2
done
docker inspect --format '{{.State.Health.Status}}' pmpguard-try | grep -x healthy
curl --fail --silent --show-error -H 'Authorization: Bearer try' 'http://127.0.0.1:8000/search?text=a+pond&k=1'

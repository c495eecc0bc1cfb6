#!/bin/sh
# Makes an authority and one certificate each for scheduler, worker and service in a new folder: sh deploy/certificates.sh FOLDER
# Whoever has ca.key can make members of the cluster: keep it off the machines that run it.
set -eu
umask 077
folder=${1:?name a folder that does not exist}
mkdir "$folder"
cd "$folder"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=factorize cluster" -keyout ca.key -out ca.crt 2>/dev/null
for name in scheduler worker service; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr" 2>/dev/null
  openssl x509 -req -in "$name.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -out "$name.crt" 2>/dev/null
  rm "$name.csr"
  chmod 644 "$name.key" "$name.crt"  # a container's user reads them; the folder keeps everybody else out
done
chmod 644 ca.crt

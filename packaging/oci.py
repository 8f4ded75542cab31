#!/usr/bin/env python3
"""Writes an image of one layer that `podman load`, `docker load`, `ctr image import` and `skopeo` read:
packaging/oci.py ROOT.tar IMAGE.tar NAME:TAG CONFIG.json

The archive is an OCI image layout (oci-layout, index.json, blobs) with the manifest.json of `docker save` beside it,
which names the same blobs. The same input gives the same bytes.
"""

import gzip
import hashlib
import io
import json
import sys
import tarfile


def blob(data):
    """Returns the path in an image layout of a blob with this content."""
    return "blobs/sha256/" + hashlib.sha256(data).hexdigest()


def descriptor(kind, data, **more):
    """Returns the OCI descriptor of a blob."""
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(data), **more}


def main(root, image, name, config):
    with open(root, "rb") as file:
        layer = file.read()
    with open(config, encoding="utf-8") as file:
        settings = json.load(file)
    diff_id = "sha256:" + hashlib.sha256(layer).hexdigest()
    layer = gzip.compress(layer, mtime=0)
    config = {
        **settings,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": settings["created"], "created_by": "make image"}],
    }
    config = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", config),
        "layers": [descriptor("layer.v1.tar+gzip", layer)],
    }
    manifest = json.dumps(manifest).encode()
    # podman takes the whole name from the annotation, and containerd from its own.
    annotations = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    index = {"schemaVersion": 2, "manifests": [descriptor("manifest.v1+json", manifest, annotations=annotations)]}
    docker = [{"Config": blob(config), "RepoTags": [name], "Layers": [blob(layer)]}]
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        "manifest.json": json.dumps(docker).encode(),
        blob(config): config,
        blob(manifest): manifest,
        blob(layer): layer,
    }
    with tarfile.open(image, "w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Keys, certificates and kubeconfigs of a cluster."""

import base64
import json

from lab.shell import run

ADMINISTRATOR = "admin"


def write(folder, cluster, server, server_names, users):
    """Writes an authority, the certificate of the API server, and a kubeconfig for each of `users`: name, and subject."""
    folder.mkdir(parents=True, exist_ok=True)
    key(folder / "ca.key")
    run("openssl", "req", "-x509", "-new", "-key", folder / "ca.key", "-subj", f"/CN={cluster}", "-days", 30,
        "-out", folder / "ca.crt")
    certificate(folder, "apiserver", "/CN=kube-apiserver", ",".join(server_names))
    certificate(folder, "apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet")
    run("openssl", "genrsa", "-out", folder / "accounts.key", 2048)
    run("openssl", "rsa", "-in", folder / "accounts.key", "-pubout", "-out", folder / "accounts.pub")
    for name, subject in users.items():
        user(folder, cluster, server, name, subject)


def user(folder, cluster, server, name, subject):
    """Writes the certificate and the kubeconfig of a user; the path of the latter."""
    path = folder / f"{name}.kubeconfig"
    certificate(folder, name, subject)
    path.write_text(kubeconfig(folder, cluster, server, name))
    return path


def key(path):
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def certificate(folder, name, subject, names=""):
    key(folder / f"{name}.key")
    extensions = "extendedKeyUsage=serverAuth,clientAuth\n" + (f"subjectAltName={names}\n" if names else "")
    (folder / f"{name}.ext").write_text(extensions)
    run("openssl", "req", "-new", "-key", folder / f"{name}.key", "-subj", subject, "-out", folder / f"{name}.csr")
    run("openssl", "x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
        "-CAcreateserial", "-days", 30, "-out", folder / f"{name}.crt", "-extfile", folder / f"{name}.ext")


def kubeconfig(folder, cluster, server, user):
    def encoded(name):
        return base64.b64encode((folder / name).read_bytes()).decode()

    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": {
            "server": server, "certificate-authority-data": encoded("ca.crt")}}],
        "users": [{"name": user, "user": {
            "client-certificate-data": encoded(f"{user}.crt"), "client-key-data": encoded(f"{user}.key")}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
    }, indent=1)

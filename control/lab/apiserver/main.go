// Command apiserver is etcd, kube-apiserver or kubectl, whichever it is called, built from their
// published modules. Tests use them from here where no KUBEBUILDER_ASSETS say where else.
package main

import (
	"log"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(app.NewAPIServerCommand()))
	case "kubectl":
		os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
	default:
		log.Fatalf("%s: call it etcd, kube-apiserver or kubectl", name)
	}
}

// Package geneve takes the place of Liqo's package of this name on a kernel without Geneve: the same functions make
// VXLAN devices with the name, identifier, port, peer and MTU that the Geneve device would have. With the variable
// GENEVE=user-space they make TAP devices instead, whose frames the process sends in Geneve.
//
// Nothing else of Liqo is replaced, and nothing at all on a kernel with Geneve (deploy/e2e/lab/liqo.py).
package geneve

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// EnsureGeneveInterfacePresence makes a device, or replaces one whose attributes differ, and gives it an address.
func EnsureGeneveInterfacePresence(
	name, local, remote string, id uint32, disableARP bool, mtu int, port uint16,
) error {
	peer, err := net.ResolveIPAddr("ip", remote)
	if err != nil {
		return fmt.Errorf("peer of %s: %w", name, err)
	}
	device, err := ensureDevice(name, peer.IP, id, mtu, port)
	if err != nil {
		return err
	}
	if disableARP {
		if err := netlink.LinkSetARPOff(device); err != nil {
			return fmt.Errorf("ARP of %s: %w", name, err)
		}
	}
	if err := netlink.LinkSetUp(device); err != nil {
		return fmt.Errorf("%s cannot be set up: %w", name, err)
	}
	address := &netlink.Addr{IPNet: netlink.NewIPNet(net.ParseIP(local))}
	if err := netlink.AddrReplace(device, address); err != nil {
		return fmt.Errorf("address %s of %s: %w", local, name, err)
	}
	return nil
}

func ensureDevice(name string, peer net.IP, id uint32, mtu int, port uint16) (netlink.Link, error) {
	if isInUserSpace() {
		return ensureTap(name, peer, id, mtu, port)
	}
	wanted := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, TxQLen: 1000},
		VxlanId:   int(id),
		Group:     peer,
		Port:      int(port),
	}
	return wanted, ensureVxlan(wanted)
}

func ensureVxlan(wanted *netlink.Vxlan) error {
	name := wanted.Name
	if found, err := find(name); err != nil {
		return err
	} else if found != nil {
		if vxlan, ok := found.(*netlink.Vxlan); ok && vxlan.VxlanId == wanted.VxlanId &&
			vxlan.Group.Equal(wanted.Group) && vxlan.Port == wanted.Port && vxlan.MTU == wanted.MTU {
			wanted.Index = vxlan.Index
			return nil
		}
		if err := netlink.LinkDel(found); err != nil {
			return fmt.Errorf("%s cannot be replaced: %w", name, err)
		}
	}
	if err := netlink.LinkAdd(wanted); err != nil {
		return fmt.Errorf("%s cannot be made: %w", name, err)
	}
	return nil
}

// EnsureGeneveInterfaceAbsence removes a device if it exists.
func EnsureGeneveInterfaceAbsence(name string) error {
	if isInUserSpace() {
		removeTap(name)
		return nil
	}
	found, err := find(name)
	if err != nil || found == nil {
		return err
	}
	return netlink.LinkDel(found)
}

// ListGeneveInterfaces returns all devices of the kind that is made here.
func ListGeneveInterfaces() ([]netlink.Link, error) {
	if isInUserSpace() {
		return taps(), nil
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	var found []netlink.Link
	for _, link := range all {
		if link.Type() == "vxlan" {
			found = append(found, link)
		}
	}
	return found, nil
}

// find returns nil if there is no such device.
func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	return link, err
}

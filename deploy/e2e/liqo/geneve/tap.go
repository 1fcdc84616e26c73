package geneve

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
)

const (
	headerBytes = 8
	// Of the second byte of the header: there are options that a receiver has to know.
	critical = 0x40
	// "Trans Ether Bridging": the content is an Ethernet frame.
	ethernet = 0x6558
	frameMax = 65535
)

// tunnel is what assigns a packet to a device, as in the kernel.
type tunnel struct {
	remote netip.Addr
	id     uint32
}

// tap is a device that exists as long as its file is open.
type tap struct {
	*netlink.Tuntap
	tunnel
	port uint16
}

var (
	mutex   sync.Mutex
	devices = map[string]*tap{}
	sockets = map[uint16]*net.UDPConn{}
)

func isInUserSpace() bool {
	return os.Getenv("GENEVE") == "user-space"
}

// ensureTap makes a TAP device whose frames are sent in Geneve (RFC 8926), or replaces one whose attributes differ.
func ensureTap(name string, peer net.IP, id uint32, mtu int, port uint16) (netlink.Link, error) {
	mutex.Lock()
	defer mutex.Unlock()
	remote, _ := netip.AddrFromSlice(peer)
	wanted := tunnel{remote.Unmap(), id}
	if found := devices[name]; found != nil {
		if found.tunnel == wanted && found.MTU == mtu && found.port == port {
			return found, nil
		}
		remove(name)
	}
	socket, err := socketOf(port)
	if err != nil {
		return nil, err
	}
	device := &netlink.Tuntap{
		LinkAttrs:  netlink.LinkAttrs{Name: name, TxQLen: 1000},
		Mode:       netlink.TUNTAP_MODE_TAP,
		Flags:      netlink.TUNTAP_NO_PI,
		Queues:     1,
		NonPersist: true,
	}
	if err := netlink.LinkAdd(device); err != nil {
		return nil, fmt.Errorf("%s cannot be made: %w", name, err)
	}
	device.MTU = mtu
	made := &tap{device, wanted, port}
	devices[name] = made
	if err := netlink.LinkSetMTU(device, mtu); err != nil {
		remove(name)
		return nil, fmt.Errorf("MTU of %s: %w", name, err)
	}
	go made.send(socket)
	return made, nil
}

// send encapsulates frames of the device until it is removed.
func (device *tap) send(socket *net.UDPConn) {
	buffer := make([]byte, headerBytes+frameMax)
	buffer[2], buffer[3] = ethernet>>8, ethernet&0xff
	buffer[4], buffer[5], buffer[6] = byte(device.id>>16), byte(device.id>>8), byte(device.id)
	to := netip.AddrPortFrom(device.remote, device.port)
	for {
		length, err := device.Fds[0].Read(buffer[headerBytes:])
		if err != nil {
			return
		}
		// What cannot be sent is lost, as on any link.
		_, _ = socket.WriteToUDPAddrPort(buffer[:headerBytes+length], to)
	}
}

// socketOf returns the socket of a port, which lasts as long as the process.
func socketOf(port uint16) (*net.UDPConn, error) {
	if socket := sockets[port]; socket != nil {
		return socket, nil
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
	if err != nil {
		return nil, fmt.Errorf("the port of Geneve: %w", err)
	}
	sockets[port] = socket
	go receive(socket)
	return socket, nil
}

// receive writes frames to the devices of their tunnels.
func receive(socket *net.UDPConn) {
	buffer := make([]byte, headerBytes+frameMax)
	for {
		length, source, err := socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			continue
		}
		id, frame := decapsulated(buffer[:length])
		if device := deviceOf(tunnel{source.Addr().Unmap(), id}); device != nil && frame != nil {
			_, _ = device.Fds[0].Write(frame)
		}
	}
}

// decapsulated returns the identifier and the frame of a packet, without a frame if this end does not know the packet.
func decapsulated(packet []byte) (uint32, []byte) {
	if len(packet) < headerBytes {
		return 0, nil
	}
	version, header := packet[0]>>6, headerBytes+4*int(packet[0]&0x3f)
	protocol := int(packet[2])<<8 | int(packet[3])
	if version != 0 || packet[1]&critical != 0 || protocol != ethernet || len(packet) < header {
		return 0, nil
	}
	return uint32(packet[4])<<16 | uint32(packet[5])<<8 | uint32(packet[6]), packet[header:]
}

func deviceOf(wanted tunnel) *tap {
	mutex.Lock()
	defer mutex.Unlock()
	for _, device := range devices {
		if device.tunnel == wanted {
			return device
		}
	}
	return nil
}

func removeTap(name string) {
	mutex.Lock()
	defer mutex.Unlock()
	remove(name)
}

// remove closes the file of a device, if there is one of this name.
func remove(name string) {
	if device := devices[name]; device != nil {
		device.Fds[0].Close()
		delete(devices, name)
	}
}

func taps() []netlink.Link {
	mutex.Lock()
	defer mutex.Unlock()
	found := make([]netlink.Link, 0, len(devices))
	for _, device := range devices {
		found = append(found, device)
	}
	return found
}

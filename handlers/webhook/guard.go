package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// ErrAddress is wrapped by the error of a job whose receiver has an address that is not allowed:
// see [Allow]. The job is buried.
var ErrAddress = errors.New("webhook: the address is not allowed")

// A guard decides which addresses a connection may be made to.
type guard struct{ allow, deny []netip.Prefix }

// A block is a range of addresses that is refused, and the reason.
type block struct {
	prefix netip.Prefix
	what   string
}

// special lists the addresses that are refused. It follows the IANA registries
// iana-ipv4-special-registry and iana-ipv6-special-registry, without the few global entries.
var special = func() (list []block) {
	for _, entry := range [][2]string{
		{"0.0.0.0/8", "unspecified"},
		{"10.0.0.0/8", "private"},
		{"100.64.0.0/10", "shared by carriers"},
		{"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local"},
		{"172.16.0.0/12", "private"},
		{"192.0.0.0/24", "for protocols"},
		{"192.0.2.0/24", "for documentation"},
		{"192.88.99.0/24", "a 6to4 relay"},
		{"192.168.0.0/16", "private"},
		{"198.18.0.0/15", "for benchmarks"},
		{"198.51.100.0/24", "for documentation"},
		{"203.0.113.0/24", "for documentation"},
		{"224.0.0.0/4", "multicast"},
		{"255.255.255.255/32", "broadcast"},
		{"240.0.0.0/4", "reserved"},
		{"::/128", "unspecified"},
		{"::1/128", "loopback"},
		{"::ffff:0:0/96", "mapped IPv4"},
		{"64:ff9b::/96", "NAT64"},
		{"64:ff9b:1::/48", "NAT64"},
		{"2001::/32", "Teredo"},
		{"2001::/23", "for protocols"},
		{"2001:db8::/32", "for documentation"},
		{"2002::/16", "6to4"},
		{"3fff::/20", "for documentation"},
		{"fc00::/7", "private"},
		{"fe80::/10", "link-local"},
		{"fec0::/10", "site-local"},
		{"ff00::/8", "multicast"},
	} {
		list = append(list, block{netip.MustParsePrefix(entry[0]), entry[1]})
	}
	return list
}()

// public6 has all public addresses of IPv6 that have been assigned.
var public6 = netip.MustParsePrefix("2000::/3")

// refuses returns why no connection may be made to an address. It is empty if one may.
func (g guard) refuses(addr netip.Addr) string {
	addr = addr.WithZone("") // a prefix contains no address with a zone
	has := func(p netip.Prefix) bool { return p.Contains(addr) || p.Contains(addr.Unmap()) }
	switch {
	case !addr.IsValid():
		return "not an address"
	case slices.ContainsFunc(g.deny, has):
		return "denied"
	case slices.ContainsFunc(g.allow, has):
		return ""
	}
	for _, s := range special {
		if s.prefix.Contains(addr) {
			return s.what
		}
	}
	if addr.Is6() && !public6.Contains(addr) {
		return "not public"
	}
	return ""
}

// An addressError says why no connection may be made. It has no address.
type addressError struct{ why string }

func (e *addressError) Error() string {
	return fmt.Sprintf("%v: it is %s; expected a public address, or one of Allow", ErrAddress, e.why)
}

// Unwrap returns ErrAddress.
func (e *addressError) Unwrap() error { return ErrAddress }

// control is called with the address of a socket that is about to be connected.
func (g guard) control(_, address string, _ syscall.RawConn) error {
	end, err := netip.ParseAddrPort(address)
	if err != nil {
		return &addressError{"not one of the Internet"}
	}
	if why := g.refuses(end.Addr()); why != "" {
		return &addressError{why}
	}
	return nil
}

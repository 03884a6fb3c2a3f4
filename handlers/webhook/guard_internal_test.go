package webhook

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefusedAddresses(t *testing.T) {
	var none guard
	for text, why := range map[string]string{
		"0.0.0.0": "unspecified", "0.255.255.255": "unspecified", "1.0.0.0": "",
		"9.255.255.255": "", "10.0.0.0": "private", "10.255.255.255": "private", "11.0.0.0": "",
		"100.63.255.255": "", "100.64.0.0": "shared by carriers", "100.127.255.255": "shared by carriers", "100.128.0.0": "",
		"126.255.255.255": "", "127.0.0.1": "loopback", "127.255.255.255": "loopback", "128.0.0.0": "",
		"169.253.255.255": "", "169.254.0.0": "link-local", "169.254.169.254": "link-local", "169.255.0.0": "",
		"172.15.255.255": "", "172.16.0.0": "private", "172.31.255.255": "private", "172.32.0.0": "",
		"192.0.0.8": "for protocols", "192.0.0.170": "for protocols", "192.0.1.0": "", "192.0.2.1": "for documentation",
		"192.88.99.1": "a 6to4 relay", "192.167.255.255": "", "192.168.0.0": "private", "192.168.255.255": "private", "192.169.0.0": "",
		"198.17.255.255": "", "198.18.0.0": "for benchmarks", "198.19.255.255": "for benchmarks", "198.20.0.0": "",
		"198.51.100.1": "for documentation", "203.0.113.1": "for documentation", "203.0.114.0": "",
		"223.255.255.255": "", "224.0.0.1": "multicast", "239.255.255.255": "multicast",
		"240.0.0.0": "reserved", "255.255.255.254": "reserved", "255.255.255.255": "broadcast",
		"8.8.8.8": "", "93.184.216.34": "",

		"::": "unspecified", "::1": "loopback", "::2": "not public", "::7f00:1": "not public",
		"::ffff:127.0.0.1": "mapped IPv4", "::ffff:8.8.8.8": "mapped IPv4", "::ffff:0:127.0.0.1": "not public",
		"64:ff9b::a00:1": "NAT64", "64:ff9b::808:808": "NAT64", "64:ff9b:1::1": "NAT64", "64:ff9b:2::1": "not public",
		"100::1": "not public", "1fff::1": "not public", "2000::1": "", "2001::1": "Teredo", "2001:10::1": "for protocols",
		"2001:1ff::1": "for protocols", "2001:200::1": "", "2001:db8::1": "for documentation", "2001:db9::1": "",
		"2002:7f00:1::": "6to4", "2003::1": "", "2606:4700::1111": "", "3ffe::1": "", "3fff::1": "for documentation", "3fff:1000::1": "",
		"4000::1": "not public", "5f00::1": "not public", "fc00::1": "private", "fd12:3456::1": "private",
		"fe80::1": "link-local", "fe80::1%eth0": "link-local", "::1%eth0": "loopback", "febf::1": "link-local", "fec0::1": "site-local",
		"ff02::1": "multicast", "ff0e::1": "multicast",
	} {
		require.Equal(t, why, none.refuses(netip.MustParseAddr(text)), text)
	}
	require.Equal(t, "not an address", none.refuses(netip.Addr{}))
}

func TestAllowedAndDeniedAddresses(t *testing.T) {
	g := guard{
		allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")},
		deny:  []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24"), netip.MustParsePrefix("8.8.8.0/24")},
	}
	for text, why := range map[string]string{
		"10.1.0.1": "", "10.1.2.1": "denied", "10.2.0.1": "private", "8.8.8.8": "denied", "8.8.4.4": "",
		"fd00:1::1": "", "fd00:2::1": "private", "::ffff:8.8.8.8": "denied", "::ffff:10.1.0.1": "", "::ffff:10.2.0.1": "mapped IPv4",
	} {
		require.Equal(t, why, g.refuses(netip.MustParseAddr(text)), text)
	}
}

func TestControlRefusesWhatItCannotRead(t *testing.T) {
	var none guard
	require.NoError(t, none.control("tcp4", "8.8.8.8:443", nil))
	for _, address := range []string{"127.0.0.1:443", "[::1]:443", "[fe80::1%lo]:443", "/run/x.sock", "localhost:443", ""} {
		require.ErrorIs(t, none.control("tcp", address, nil), ErrAddress, address)
	}
}

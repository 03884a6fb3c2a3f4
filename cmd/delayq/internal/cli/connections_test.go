package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// everyCommand runs each command that reads and each that writes, and requires that it does.
func everyCommand(t *testing.T, cli *tool, rdb redis.UniversalClient, prefix string) {
	t.Helper()
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	startF(t, client)
	for _, args := range slices.Concat(readers, [][]string{{"memory"}, {"memory", "T"}}, writers) {
		_, err := client.Enqueue(t.Context(), "T", "j", []byte("x"), delayq.Replace(), delayq.Key("k"), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		_, _ = client.Dequeue(t.Context(), "T", "d") // it may have been purged
		_, err = client.Enqueue(t.Context(), "T", "d", nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.NoError(t, client.Bury(t.Context(), "T", "d", "dead"))
		for _, id := range []string{"j", "x"} { // U exists, and is empty
			_, err := client.Enqueue(t.Context(), "U", id, nil, delayq.Replace())
			require.NoError(t, err)
			_, err = client.Dequeue(t.Context(), "U", id)
			require.NoError(t, err)
		}
		require.NoError(t, client.Schedule(t.Context(), "T", "s", delayq.Every(time.Hour), nil))
		require.NoError(t, client.Schedule(t.Context(), "T", "t", delayq.Every(time.Hour), nil, delayq.Header("task", "sql x")))
		exported := strings.ReplaceAll(cli.ok("export", "T"), `"j"`, `"imported"`)
		stdin := "topics: [T]"
		if args[0] == "import" {
			stdin = exported
		}
		r := cli.do(stdin, args...)
		code := exitDone
		if args[0] == "wait" { // for a job that is due in an hour
			code = exitPartly
		}
		require.Equal(t, code, r.code, "%v: %s%s", args, r.out, r.err)
	}
	require.Contains(t, cli.ok("audit"), "pause")
}

// withoutRedis is the environment of a command line without DELAYQ_REDIS, and then with this one.
func withoutRedis(cli *tool, url string, env ...string) *tool {
	own := slices.DeleteFunc(slices.Clone(cli.env), func(v string) bool { return strings.HasPrefix(v, "DELAYQ_REDIS=") })
	return &tool{cli.t, append(append(own, "DELAYQ_REDIS="+url), env...)}
}

// Every command works on a Cluster, whether its URL names all nodes or one.
func TestEveryCommandOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	rdb := cluster.Client(t)
	addrs := cluster.Addrs()
	for name, url := range map[string]string{"all": "redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr="), "one": "redis://" + addrs[1]} {
		t.Run(name, func(t *testing.T) {
			prefix := redistest.Prefix(t)
			env := []string{}
			if name == "one" {
				env = append(env, "DELAYQ_CLUSTER=true")
			}
			everyCommand(t, withoutRedis(newTool(t, addrs[0], prefix), url, env...), rdb, prefix)
		})
	}
}

// Every command works with Sentinels, and so does the next one after a failover.
func TestEveryCommandWithSentinels(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	master := redistest.Start(t, redistest.NoRoles...)
	replica := redistest.Replica(t, master, redistest.NoRoles...)
	sentinels := redistest.Sentinels(t, master, 3)
	url := fmt.Sprintf("redis://%s?master_name=%s&addr=%s&addr=%s", sentinels[0], redistest.MasterName, sentinels[1], sentinels[2])
	cli := withoutRedis(newTool(t, master.Addr(), "shop"), url)
	rdb := master.Client(t)
	everyCommand(t, cli, rdb, "shop")
	require.EqualValues(t, 1, rdb.Wait(t.Context(), 1, 10*time.Second).Val())
	require.NoError(t, master.Kill())
	queuetest.Until(t, func() bool { return cli.do("", "pause", "T", "--because", "failover").code == 0 })
	require.Contains(t, cli.ok("topics"), "failover")
	other := newTool(t, replica.Addr(), "shop")
	require.Contains(t, other.ok("topics"), "failover", "on the new master")
}

// Every command works over TLS with a certificate of its own, as an ACL user, with a password from
// a file or from the environment. Without one of them it is refused, or does not trust Redis.
func TestEveryCommandOverTLSWithAPassword(t *testing.T) {
	t.Parallel()
	redistest.NeedTLS(t)
	server := redistest.Start(t, redistest.NoRoles...)
	admin := server.Client(t)
	ca, cert, key := certificates(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	for _, setting := range [][2]string{ // one at a time, as Redis 6.2 wants it; the port makes use of all
		{"tls-cert-file", cert}, {"tls-key-file", key}, {"tls-ca-cert-file", ca}, {"tls-auth-clients", "yes"}, {"tls-port", strconv.Itoa(port)},
	} {
		require.NoError(t, admin.ConfigSet(t.Context(), setting[0], setting[1]).Err())
	}
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all").Err())
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	url := fmt.Sprintf("rediss://app@127.0.0.1:%d", port)
	trust := []string{"DELAYQ_TLS_CA=" + ca, "DELAYQ_TLS_CERT=" + cert, "DELAYQ_TLS_KEY=" + key}
	base := newTool(t, server.Addr(), "shop")
	everyCommand(t, withoutRedis(base, url, append(trust, "DELAYQ_PASSWORD_FILE="+file)...), admin, "shop")
	withoutRedis(base, url, append(trust, "DELAYQ_PASSWORD=s3cret")...).ok("topics")
	for name, env := range map[string][]string{
		"no password": trust, "no authority": append([]string{"DELAYQ_PASSWORD=s3cret"}, trust[1:]...), "no certificate": {"DELAYQ_PASSWORD=s3cret", trust[0]},
		"wrong password": append([]string{"DELAYQ_PASSWORD=wr0ng"}, trust...),
	} {
		r := withoutRedis(base, url, env...).do("", "topics")
		want := []int{exitUnreachable, exitError}
		switch name {
		case "wrong password":
			want = []int{exitRefused}
		case "no password":
			want = []int{exitUsage}
		}
		require.Contains(t, want, r.code, "%s: %s", name, r.err)
		require.NotContains(t, r.err, "s3cret")
		require.NotContains(t, r.err, "wr0ng")
	}
}

// certificates writes an authority, and a certificate for both sides with its key.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	raw, err := x509.CreateCertificate(rand.Reader, authority, authority, &signer.PublicKey, signer)
	require.NoError(t, err)
	signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, &own.PublicKey, signer)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(t, err)
	return write("ca.crt", "CERTIFICATE", raw), write("own.crt", "CERTIFICATE", signed), write("own.key", "PRIVATE KEY", private)
}

package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mistake in the file is said with its line, and no text shows what may be a token.
func TestTokenFile(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	file := filepath.Join(t.TempDir(), "tokens")
	for text, want := range map[string]string{
		"":                              "it has no tokens",
		"shop:secret":                   "line 1: expected name:sha256:rights:topics",
		"shop:secret:produce:*":         "line 1: the second part is no SHA-256",
		"\n:" + sum + ":produce:*":      "line 2: it has no name",
		"shop:" + sum + ":rule:*":       `line 1: the right "rule": allowed are produce, consume and operate`,
		"shop:" + sum + ":produce:":     "line 1: it names no topics",
		"shop:" + sum + ":produce:a,,b": "line 1: it names no topics",
		"shop:" + sum + ":produce:*\nshop:" + strings.Repeat("cd", 32) + ":produce:*": "line 2: the name is there twice",
		"shop:" + sum + ":produce:*\nmail:" + sum + ":produce:*":                      `line 2: the token is that of "shop", too`,
		strings.Repeat("#", mostTokensFile+1):                                         "has more than",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := NewTokens(file)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	var many strings.Builder
	for i := range mostTokens + 1 {
		fmt.Fprintf(&many, "n%d:%064x:produce:*\n", i, i)
	}
	require.NoError(t, os.WriteFile(file, []byte(many.String()), 0o600))
	_, err := NewTokens(file)
	require.ErrorContains(t, err, "line 1001: at most 1000 tokens are allowed")
	require.NoError(t, os.Chmod(file, 0o666))
	_, err = NewTokens(file)
	require.ErrorContains(t, err, "others can write it (mode 0666)")
	_, err = NewTokens(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "no such file")
	for _, args := range [][3]string{{"", "produce", "*"}, {"a", "all", "*"}, {"a", "produce", ""}, {"a:b", "produce", "*"}, {"#a", "produce", "*"}, {"a", "produce", "x\ny"}} {
		_, _, err := NewToken(args[0], args[1], args[2])
		require.Error(t, err, args)
	}
}

// Tokens are known by their SHA-256, and a file with a mistake changes nothing.
func TestTokens(t *testing.T) {
	token, line, err := NewToken("shop", "produce, consume", "order:*,mail")
	require.NoError(t, err)
	require.NotContains(t, line, token)
	other, second, err := NewToken("other", "operate", "*")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(file, []byte(line+"\r\n"), 0o640))
	tokens, err := NewTokens(file)
	require.NoError(t, err)
	for _, wrong := range []string{"", "x", token + "x", token[:len(token)-1], other, strings.Repeat("x", 1<<20), line[5:69]} {
		require.Nil(t, tokens.of(wrong))
	}
	who := tokens.of(token)
	require.Equal(t, "shop", who.name)
	for topic, right := range map[string]Right{"order:": Produce, "order:cancel": Consume, "mail": Consume} {
		require.True(t, who.may(topic, Operate, right), topic)
	}
	for topic, right := range map[string]Right{"order": Produce, "mail2": Consume, "mail": Operate, "": Produce} {
		require.False(t, who.may(topic, right), topic)
	}
	require.NoError(t, os.WriteFile(file, []byte("oops"), 0o640))
	require.Error(t, tokens.Load())
	require.NotNil(t, tokens.of(token))
	require.NoError(t, os.WriteFile(file, []byte(second), 0o640))
	require.NoError(t, tokens.Load())
	require.Nil(t, tokens.of(token))
	require.NotNil(t, tokens.of(other))
}

func TestPatterns(t *testing.T) {
	for pattern, topics := range map[string][2][]string{
		"*": {{"", "a", "a/b"}, nil}, "a": {{"a"}, {"", "ab"}}, "a*": {{"a", "ab"}, {"ba"}}, "*a": {{"a", "ba"}, {"ab"}},
		"a*b*c": {{"abc", "axbxc", "abbc"}, {"ac", "abcd", "acb"}}, "a*a": {{"aa", "aba"}, {"a"}}, "*:*": {{":", "a:b"}, {"a"}},
	} {
		for _, topic := range topics[0] {
			require.True(t, matches(pattern, topic), "%s %s", pattern, topic)
		}
		for _, topic := range topics[1] {
			require.False(t, matches(pattern, topic), "%s %s", pattern, topic)
		}
	}
}

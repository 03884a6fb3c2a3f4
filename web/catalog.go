package web

import (
	"embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

//go:embed catalog/*.json
var catalogFiles embed.FS

// languages lists the languages of the page. The first one is used if nothing else fits.
var languages = []string{"en", "zh-CN"}

// catalogs has the texts of each language.
var catalogs = loadCatalogs()

func loadCatalogs() map[string]map[string]string {
	all := make(map[string]map[string]string)
	for _, tag := range languages {
		body, err := catalogFiles.ReadFile("catalog/" + tag + ".json")
		texts := make(map[string]string)
		if err == nil {
			err = json.Unmarshal(body, &texts)
		}
		if err != nil {
			panic(fmt.Sprintf("catalog %s: %v", tag, err)) // it is part of the program, and tested
		}
		all[tag] = texts
	}
	return all
}

// plural matches a choice such as {0:job is|jobs are}: the first if the argument is 1.
var plural = regexp.MustCompile(`\{(\d):([^|}]*)\|([^}]*)\}`)

// translate returns a text with its placeholders filled, or the key if there is no such text.
func translate(lang, key string, args ...any) string {
	text, ok := catalogs[lang][key]
	if !ok {
		if text, ok = catalogs["en"][key]; !ok {
			return key
		}
	}
	if len(args) == 0 {
		return text
	}
	text = plural.ReplaceAllStringFunc(text, func(choice string) string {
		m := plural.FindStringSubmatch(choice)
		if n := int(m[1][0] - '0'); n < len(args) && fmt.Sprint(args[n]) == "1" {
			return m[2]
		}
		return m[3]
	})
	pairs := make([]string, 0, 2*len(args))
	for i, arg := range args {
		pairs = append(pairs, "{"+strconv.Itoa(i)+"}", fmt.Sprint(arg))
	}
	return strings.NewReplacer(pairs...).Replace(text) // in one go: arguments are not looked into
}

// acceptedLanguage returns the first language of an Accept-Language header that the page has. Its
// order counts; weights are in descending order in what browsers send.
func acceptedLanguage(header string) string {
	for i, part := range strings.Split(header, ",") {
		if i == 20 {
			break
		}
		tag, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		main, _, _ := strings.Cut(strings.ToLower(tag), "-")
		switch main {
		case "zh":
			return "zh-CN"
		case "en":
			return "en"
		}
	}
	return languages[0]
}

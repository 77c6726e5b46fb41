// Renders templates as KUDO does: each line of standard input is a JSON object with a template and
// its data, each line of standard output the result.
package main

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v2"
	kudo "sigs.k8s.io/yaml"
)

type request struct {
	// YAML to read, instead of a template to render.
	Yaml *string
	// Object whose content is hashed, instead of a template to render.
	Hash     map[string]interface{}
	Template string
	Data     map[string]interface{}
	Pipes    map[string]string
}

type response struct {
	Output string `json:"output"`
	Error  string `json:"error"`
}

func main() {
	functions := functions()
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var request request
		if err := json.Unmarshal(in.Bytes(), &request); err != nil {
			panic(err)
		}
		output, err := answer(request, functions)
		response := response{Output: output}
		if err != nil {
			response = responseOf(err)
		}
		if err := encoder.Encode(response); err != nil {
			panic(err)
		}
	}
	if err := in.Err(); err != nil {
		panic(err)
	}
}

func responseOf(err error) response {
	return response{Error: err.Error()}
}

func answer(request request, functions template.FuncMap) (string, error) {
	if request.Yaml != nil {
		return read(*request.Yaml)
	}
	if request.Hash != nil {
		return hash(request.Hash)
	}
	return render(request, functions)
}

// hash returns the MD5 of an object without the metadata that the API server and KUDO set.
func hash(object map[string]interface{}) (string, error) {
	object["apiVersion"] = ""
	object["kind"] = ""
	metadata := object["metadata"].(map[string]interface{})
	for _, field := range []string{
		"namespace", "resourceVersion", "uid", "selfLink", "generation", "generateName",
		"clusterName", "continue", "creationTimestamp",
	} {
		delete(metadata, field)
	}
	metadata["annotations"] = map[string]string{}
	metadata["finalizers"] = []string{}
	metadata["managedFields"] = []string{}
	metadata["ownerReferences"] = []string{}
	metadata["deletionGracePeriodSeconds"] = 0
	metadata["remainingItemCount"] = 0
	text, err := yaml.Marshal(map[string]interface{}{"object": object})
	return fmt.Sprintf("%x", md5.Sum(text)), err
}

// read returns YAML as JSON, once as any value, and once with its field v as a text.
func read(text string) (string, error) {
	value, err := kudo.YAMLToJSON([]byte(text))
	if err != nil {
		return "", err
	}
	// KUDO decodes it once more, which makes floating-point numbers of all numbers.
	var decoded interface{}
	if err := json.Unmarshal(value, &decoded); err != nil {
		return "", err
	}
	var field struct{ V string }
	fieldErr := kudo.Unmarshal([]byte(text), &field)
	result, err := json.Marshal([]interface{}{exact(decoded), field.V, fieldErr == nil})
	return string(result), err
}

// exact replaces each number by its bits, which no reader of JSON rounds.
func exact(value interface{}) interface{} {
	switch value := value.(type) {
	case float64:
		return fmt.Sprintf("bits %x", math.Float64bits(value))
	case []interface{}:
		for index := range value {
			value[index] = exact(value[index])
		}
	case map[string]interface{}:
		for key := range value {
			value[key] = exact(value[key])
		}
	}
	return value
}

func render(request request, functions template.FuncMap) (string, error) {
	data := request.Data
	if request.Pipes != nil {
		data["Pipes"] = request.Pipes
	}
	t, err := template.New("gotpl").Option("missingkey=error").New("t").Funcs(functions).Parse(request.Template)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := t.ExecuteTemplate(&out, "t", data); err != nil {
		return "", err
	}
	if !utf8.Valid(out.Bytes()) {
		return "", fmt.Errorf("the output is not UTF-8")
	}
	return out.String(), nil
}

// functions returns what KUDO offers; what differs each time is pinned down.
func functions() template.FuncMap {
	functions := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "base", "dir", "clean", "ext", "isAbs"} {
		delete(functions, name)
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return string(text), err
	}
	functions["now"] = func() time.Time { return time.Unix(1700000000, 123456789).UTC() }
	functions["keys"] = func(maps ...map[string]interface{}) []string {
		all := []string{}
		for _, entries := range maps {
			all = append(all, sortedKeys(entries)...)
		}
		return all
	}
	functions["values"] = func(entries map[string]interface{}) []interface{} {
		all := []interface{}{}
		for _, key := range sortedKeys(entries) {
			all = append(all, entries[key])
		}
		return all
	}
	return functions
}

func sortedKeys(entries map[string]interface{}) []string {
	keys := make([]string, 0, len(entries))
	for key := range entries {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// Command gitops computes the status of an object, as JSON from standard input, in the way of GitOps
// tools: `gitops kstatus` as Flux does, and `gitops argocd PATCH` with a health check of the patch of
// Argo CD's ConfigMap.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

func main() {
	result, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(result)
}

func run(args []string) (string, error) {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return "", err
	}
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(text); err != nil {
		return "", fmt.Errorf("decoding the object: %w", err)
	}
	switch {
	case len(args) == 1 && args[0] == "kstatus":
		result, err := status.Compute(&object)
		if err != nil {
			return "", fmt.Errorf("computing the status: %w", err)
		}
		return result.Status.String(), nil
	case len(args) == 2 && args[0] == "argocd":
		return argocd(args[1], &object)
	default:
		return "", errors.New("usage: gitops kstatus | gitops argocd PATCH")
	}
}

// argocd runs the health check for the kind of the object.
func argocd(path string, object *unstructured.Unstructured) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var patch struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &patch); err != nil {
		return "", fmt.Errorf("decoding %s: %w", path, err)
	}
	kind := object.GroupVersionKind()
	key := fmt.Sprintf("resource.customizations.health.%s_%s", kind.Group, kind.Kind)
	script, found := patch.Data[key]
	if !found {
		return "", fmt.Errorf("%s has no key %s", path, key)
	}
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(script); err != nil {
		return "", fmt.Errorf("running %s: %w", key, err)
	}
	health, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return "", fmt.Errorf("%s returns no table", key)
	}
	return health.RawGetString("status").String(), nil
}

// value converts a decoded JSON value to one of Lua.
func value(state *lua.LState, decoded any) lua.LValue {
	switch decoded := decoded.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, item := range decoded {
			table.RawSetString(key, value(state, item))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, item := range decoded {
			table.Append(value(state, item))
		}
		return table
	case string:
		return lua.LString(decoded)
	case bool:
		return lua.LBool(decoded)
	case int64:
		return lua.LNumber(decoded)
	case float64:
		return lua.LNumber(decoded)
	default:
		return lua.LNil
	}
}

#!/bin/sh
# A plugin of bub in a few lines of shell: it adds a sentence to the system prompt.
# bub sends one message a line; the id of a request comes right after the version.

answer() {
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"
}

while IFS= read -r line; do
    id=$(printf '%s\n' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\),.*/\1/p')
    case $line in
        *'"method":"initialize"'*) answer '{"protocol":1,"version":"0.1.0","hooks":["system_prompt"]}' ;;
        *'"method":"hook/system_prompt"'*) answer '{"value":"The plugin demo says hello."}' ;;
        *'"method":"ping"'*) answer '{}' ;;
        *'"method":"shutdown"'*) exit 0 ;;
    esac
done

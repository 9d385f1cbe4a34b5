# Completions of snowmelt for bash. The program says what fits; this joins the words and cuts what bash knows already.
_snowmelt() {
    local IFS=$' \t\n' line="${COMP_LINE:0:COMP_POINT}" words=() piece i
    # bash splits words at the characters of COMP_WORDBREAKS, and names have some of them: '@', ':', '='.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece="${COMP_WORDS[i]}"
        if ((i == 0)) || [[ "$line" == [[:blank:]]* ]]; then words+=(""); fi
        line="${line#"${line%%[![:blank:]]*}"}"
        if ((i == COMP_CWORD)); then piece="$line"; fi
        words[${#words[@]} - 1]+="$piece"
        line="${line#"$piece"}"
    done
    local current="${words[${#words[@]} - 1]}" candidate
    # What stands before the last of these characters stays as it is.
    local known="${current%"${current##*[$COMP_WORDBREAKS]}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        candidate="${candidate#"$known"}"
        if [[ "$candidate" == *[[:blank:]]* ]]; then printf -v candidate %q "$candidate"; fi
        COMPREPLY+=("$candidate")
    done < <(command snowmelt complete "$((${#words[@]} - 1))" "${words[@]}" 2> /dev/null)
    if ((${#COMPREPLY[@]} == 1)) && [[ "${COMPREPLY[0]}" == *[/=:@] ]]; then compopt -o nospace; fi
}
complete -o nosort -F _snowmelt snowmelt

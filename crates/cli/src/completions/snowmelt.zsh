#compdef snowmelt
# Completions of snowmelt for zsh. The program says what fits.
_snowmelt() {
    local line value
    local -a whole begun
    for line in ${(f)"$(command snowmelt complete $((CURRENT - 1)) "${(@Q)words}" 2> /dev/null)"}; do
        value=${line%%$'\t'*}
        if [[ $value == *[/=:@] ]]; then begun+=("$value")
        else whole+=("${value//:/\\:}:${${line#*$'\t'}#$value}"); fi
    done
    (( $#begun )) && compadd -S '' -a begun
    (( $#whole )) && _describe -V snowmelt whole
    return $(( $#begun + $#whole == 0 ))
}
if [[ $funcstack[1] == _snowmelt ]]; then _snowmelt "$@"; else compdef _snowmelt snowmelt; fi

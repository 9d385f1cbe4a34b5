# Completions of snowmelt for fish. The program says what fits.
function __snowmelt_complete
    set -l words (commandline -opc)
    command snowmelt complete (count $words) $words (commandline -ct | string collect --allow-empty) 2> /dev/null
end
complete -c snowmelt -f -a '(__snowmelt_complete)'

"""Shell completion of every executable for bash, zsh and fish, made from the man pages.

    python3 man/mkcompletion.py DIR

writes DIR/bash-completion/completions/NAME, DIR/zsh/site-functions/_NAME and DIR/fish/vendor_completions.d/NAME.fish.
A page's SYNOPSIS has the commands and whether a program is run, its OPTIONS what each option takes: `Cm a | b` are
words, `Ar FILE` and `Ar DIR` are paths, and `Ar WORD,...` is a list with commas. A command may have a page of its own
with more options, as gpt-analyze-summary(1). tests/man holds OPTIONS against --help. So no stage is started for a
completion, and nothing is kept twice.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

MAN = Path(__file__).resolve().parent
TOP = MAN.parent
sys.path.insert(0, str(TOP))

from gpt.base.arch import KNOWN  # noqa: E402

# The words that a placeholder stands for. Those of a placeholder in TEXT are the words (Cm) in the option's own text.
VALUES = {"SM": KNOWN, "PROBE": tuple(sorted(path.stem for path in (TOP / "probes").glob("*.toml")))}
TEXT = ("KIND", "TYPE", "WORD")
PATHS = ("FILE", "STREAM", "TRACE", "PROBE")
MACROS = {"Ar", "Cm", "Dq", "Ev", "Fl", "Fn", "Li", "Nm", "Ns", "Pa", "Pq", "Ql", "Sq", "Sx", "Sy", "Xr"}
ESCAPES = {r"\e": "\\", r"\(aq": "'", r"\&": "", r"\-": "-"}


@dataclass(frozen=True)
class Option:
    """One option: its flags, the first sentence about it, and its value, if it has one."""

    flags: tuple[str, ...]
    about: str
    value: str = ""  # as the page calls it: DIR
    words: tuple[str, ...] = ()
    several: bool = False  # words with commas between them


@dataclass(frozen=True)
class Tool:
    """One executable. `runs` says that a command follows the options."""

    name: str
    commands: tuple[str, ...]
    options: tuple[Option, ...]
    runs: bool


def parse_page(path: Path) -> Tool:
    """Return the commands and options of a tool from the SYNOPSIS and OPTIONS of its page and its commands' pages."""
    texts = {path.stem: path.read_text()}
    texts |= {page.stem: page.read_text() for page in sorted(path.parent.glob(f"{path.stem}-*.1"))}
    synopsis = _find_section(texts[path.stem], "SYNOPSIS")
    commands = re.findall(r"^\.Nm\n\.Cm (\w+)$", synopsis, re.M)
    commands += [name.removeprefix(f"{path.stem}-") for name in texts if name != path.stem]
    options: dict[tuple[str, ...], Option] = {}
    for text in texts.values():
        for item in re.split(r"^\.It ", _find_section(text, "OPTIONS"), flags=re.M)[1:]:
            if item.startswith("Fl"):
                option = _parse_option(item)
                options.setdefault(option.flags, option)
    runs = "\n.Ar COMMAND" in synopsis or "Ar COMMAND " in synopsis
    return Tool(path.stem, tuple(dict.fromkeys(commands)), tuple(options.values()), runs)


def find_pages() -> list[Path]:
    """Return the page of each tool, but no page of a command."""
    pages = sorted((MAN / "man1").glob("gpt-*.1"))
    return [page for page in pages if not any(page.stem.startswith(f"{tool.stem}-") for tool in pages)]


def _find_section(text: str, title: str) -> str:
    return text.partition(f"\n.Sh {title}\n")[2].partition("\n.Sh ")[0]


def _parse_option(item: str) -> Option:
    line, _, body = item.partition("\n")
    flags = re.findall(r"Fl (Fl )?([\w-]+)", line)
    value = found[1] if (found := re.search(r" Ar (\S+)", line)) else ""
    name, dot, _ = value.partition(",...")
    words = tuple(found[1].split(" | ")) if (found := re.search(r" Cm (.*)", line)) else VALUES.get(name, ())
    if name in TEXT:
        words = tuple(dict.fromkeys(re.findall(r"\b[a-z]+\b", " ".join(re.findall(r"^\.Cm (.*)", body, re.M)))))
    return Option(
        tuple(f"-{'-' if long else ''}{flag}" for long, flag in flags),
        _first_sentence(body),
        name or ("WORD" if words else ""),
        words,
        bool(dot),
    )


def _first_sentence(body: str) -> str:
    """Return the first sentence of an item as plain text, without characters that are special in a shell."""
    text = ""
    for line in body.splitlines():
        if line.startswith("."):
            words = [word for word in line[1:].split() if word not in MACROS]
            line = re.sub(r" ([,.;:)])", r"\1", " ".join(words))
        text += " " + line
        if re.search(r"[.;:]$", line):
            break
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    text = re.sub(r"[\"'`\\\[\]$:]", "", re.split(r"[.;:](?: |$)", text.strip())[0])
    return shorten(text, 72, placeholder=" ...")


# bash: words after each option, and everywhere else options, commands or files

BASH = """\
# Completion of {name} for bash, made from {name}(1).
{function}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} line
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    offer() {{ # names may have blanks
        COMPREPLY=()
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@" -- "$cur")
    }}
    list() {{ # words with commas between them
        local before=
        [[ $cur != *,* ]] || before=${{cur%,*}},
        cur=${{cur##*,}}
        offer -P "$before" -W "$1"
    }}
    case $prev in
{cases}
    *)
        if [[ $cur == -* ]]; then
            offer -W "{flags}"
{rest}
        fi
        ;;
    esac
    unset -f offer list
}}
complete -F {function} {name}
"""


def bash(tool: Tool) -> str:
    """The file for bash."""
    cases = []
    for option in tool.options:
        if not option.value:
            continue
        offer = _bash_offer(option)
        cases.append(f"    {' | '.join(option.flags)}) {offer} ;;")
    rest = []
    if tool.commands:
        rest += ["        elif ((COMP_CWORD == 1)); then", f'            offer -W "{" ".join(tool.commands)}"']
    rest += ["        else", "            compopt -o filenames", f"            offer {'-c -f' if tool.runs else '-f'}"]
    flags = " ".join(flag for option in tool.options for flag in option.flags)
    function = "_" + tool.name.replace("-", "_")
    return BASH.format(name=tool.name, function=function, cases="\n".join(cases), flags=flags, rest="\n".join(rest))


def _bash_offer(option: Option) -> str:
    words = f' -W "{" ".join(option.words)}"' if option.words else ""
    if option.several:
        return f"list{words.removeprefix(' -W')}" if words else ":"
    if option.value in PATHS:
        return f"compopt -o filenames && offer -f{words}"
    if option.value == "DIR":
        return "compopt -o filenames && offer -d"
    return f"offer{words}" if words else ":"


# zsh


def zsh(tool: Tool) -> str:
    """The file for zsh."""
    lines = [f"#compdef {tool.name}", f"# Completion of {tool.name} for zsh, made from {tool.name}(1).", ""]
    lines.append("_arguments -S \\")
    for option in tool.options:
        value = f":{option.value}:{_zsh_action(option)}" if option.value else ""
        flags = "{" + ",".join(option.flags) + "}" if len(option.flags) > 1 else option.flags[0]
        lines.append(f"    '*'{flags}'[{option.about}]{value}' \\")
    if tool.commands:
        lines.append(f"    '1:command:({' '.join(tool.commands)})' \\")
    if tool.runs:
        lines += ["    '*:: :{ (( CURRENT == 1 )) && _command_names -e || _normal }'"]
    else:
        lines.append("    '*:file:_files'")
    return "\n".join(lines) + "\n"


def _zsh_action(option: Option) -> str:
    words = " ".join(option.words)
    if option.several:
        return f"_sequence compadd - {words}" if words else " "
    if option.value in PATHS:
        return f"{{ compadd {words}; _files }}" if words else "_files"
    if option.value == "DIR":
        return "_files -/"
    return f"({words})" if words else " "


# fish


def fish(tool: Tool) -> str:
    """The file for fish."""
    lines = [f"# Completion of {tool.name} for fish, made from {tool.name}(1)."]
    for option in tool.options:
        flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
        lines.append(f"complete -c {tool.name} {flags}{_fish_value(option)} -d '{option.about}'")
    if tool.commands:
        words = " ".join(tool.commands)
        lines.append(f"complete -c {tool.name} -n __fish_use_subcommand -f -a '{words}'")
    if tool.runs:
        later = " -n 'not __fish_use_subcommand'" if tool.commands else ""
        lines.append(f"complete -c {tool.name}{later} -a '(__fish_complete_command)'")
    return "\n".join(lines) + "\n"


def _fish_value(option: Option) -> str:
    words = " ".join(option.words)
    if not option.value:
        return ""
    if option.several:
        return f" -x -a '(__fish_append , {words})'" if words else " -x"
    if option.value in PATHS:
        return f" -r -F{f' -a {chr(39)}{words}{chr(39)}' if words else ''}"
    if option.value == "DIR":
        return " -x -a '(__fish_complete_directories)'"
    return f" -x -a '{words}'" if words else " -x"


SHELLS = {
    "bash-completion/completions/{}": bash,
    "zsh/site-functions/_{}": zsh,
    "fish/vendor_completions.d/{}.fish": fish,
}


def write_all(folder: Path) -> list[Path]:
    """Writes the files below a folder, as `share` of a prefix, and returns their paths."""
    written = []
    for page in find_pages():
        tool = parse_page(page)
        for name, make in SHELLS.items():
            path = folder / name.format(tool.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(make(tool))
            written.append(path)
    return written


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))

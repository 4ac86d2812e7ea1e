// megalith completion: a script for bash, zsh or fish that completes commands, topics, options and their values.
//
// The script is self-contained, so completing starts no program. It is made from the options' declarations: choices
// complete to their values, texts to files.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

// A command with its topics and options. A topic is "prepare merge"; a flag that selects a command, as in "doctor
// --parallel", is an option.
struct CompletedCommand {
  std::string name, summary;
  std::vector<std::string> topics;
  std::map<std::string, std::vector<OptionWord>> options;  // by "prepare", "prepare merge"
};

std::vector<CompletedCommand> completed_commands(std::span<const Command> commands) {
  std::vector<CompletedCommand> all;
  for (const Command& command : commands) {
    CompletedCommand& one = all.emplace_back();
    one.name = command.name;
    one.summary = command.summary;
    one.options[one.name] = {};
    std::vector<OptionWord> flags;
    for (const CommandOptions& options : command.options()) {
      const size_t blank = options.command.find(' ');
      if (blank == std::string::npos || options.command[blank + 1] != '-') {
        one.options[options.command] = options.words;
        if (blank != std::string::npos) one.topics.push_back(options.command.substr(blank + 1));
      } else {
        flags.push_back({.name = options.command.substr(blank + 3), .is_switch = true});
      }
    }
    std::vector<OptionWord>& own = one.options[one.name];
    own.insert(own.end(), flags.begin(), flags.end());
    for (auto& [where, words] : one.options) {
      words.push_back({.name = "config", .takes_text = true, .meaning = "YAML file with options by name."});
      words.push_back({.name = "help", .values = {"all"}, .meaning = "What the options mean."});
    }
  }
  return all;
}

// Completions of an option, over all commands that have it.
struct CompletedValues {
  std::set<std::string> words;
  bool is_switch = true, is_list = false, takes_file = false;
  std::string meaning;
};

std::map<std::string, CompletedValues> completed_values(const std::vector<CompletedCommand>& commands) {
  std::map<std::string, CompletedValues> values;
  for (const CompletedCommand& command : commands) {
    for (const auto& [where, words] : command.options) {
      for (const OptionWord& word : words) {
        CompletedValues& one = values[word.name];
        one.words.insert(word.values.begin(), word.values.end());
        one.is_switch = one.is_switch && word.is_switch;
        one.is_list = one.is_list || word.is_list;
        one.takes_file = one.takes_file || word.takes_text;
        if (one.meaning.empty()) one.meaning = word.meaning;
      }
    }
  }
  return values;
}

std::string dashed(const std::vector<OptionWord>& words) {
  std::vector<std::string> names;
  for (const OptionWord& word : words) names.push_back("--" + word.name);
  return join(names, " ");
}

// One `case` of a shell: "  --a|--b) TEXT ;;", nothing without names.
std::string shell_case(const std::vector<std::string>& names, const std::string& text) {
  return names.empty() ? "" : fmt::format("    {}) {} ;;\n", join(names, "|"), text);
}

std::string quoted(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + result + "'";
}

// Functions shared by bash and zsh: a command's options, and an option's values.
std::string shell_tables(const std::vector<CompletedCommand>& commands) {
  std::vector<std::string> names;
  std::string topics, options;
  for (const CompletedCommand& command : commands) {
    names.push_back(command.name);
    if (!command.topics.empty())
      topics += shell_case({command.name}, fmt::format("echo {}", quoted(join(command.topics, " "))));
    for (const auto& [where, words] : command.options) {
      options += shell_case({quoted(where)}, fmt::format("echo {}", quoted(dashed(words))));
    }
  }
  std::vector<std::string> files, numbers, lists;
  std::string choices;
  for (const auto& [name, values] : completed_values(commands)) {
    if (values.is_list) lists.push_back("--" + name);
    if (values.is_switch) continue;
    if (!values.words.empty()) {
      choices += shell_case({"--" + name},
                            fmt::format("echo {}", quoted(join({values.words.begin(), values.words.end()}, " "))));
    } else {
      (values.takes_file ? files : numbers).push_back("--" + name);
    }
  }
  return fmt::format(
      "_megalith_commands() {{ echo {}; }}\n\n"
      "_megalith_topics() {{\n  case $1 in\n{}  esac\n}}\n\n"
      "_megalith_options() {{\n  case $1 in\n{}  esac\n}}\n\n"
      "# What follows an option: words to choose from, FILE, NONE (a number), or nothing (a switch).\n"
      "_megalith_values() {{\n  case $1 in\n{}{}{}  esac\n}}\n\n"
      "_megalith_is_list() {{\n  case $1 in\n{}    *) return 1 ;;\n  esac\n}}\n\n",
      quoted(join(names, " ")), topics, options, choices, shell_case(files, "echo FILE"),
      shell_case(numbers, "echo NONE"), shell_case(lists, "return 0"));
}

constexpr const char* kBash = R"(_megalith() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} option='' i
  COMPREPLY=()
  # Bash takes --name=value for three words.
  if [[ $word == '=' ]]; then
    option=$before word=''
  elif [[ $before == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $word != --* ]]; then
    for ((i = COMP_CWORD - 1; i > 1; i--)); do
      [[ ${COMP_WORDS[i]} == --* ]] || continue
      option=${COMP_WORDS[i]}
      # A word after a value belongs to nothing, but a list takes several.
      local name=${option#--}
      ((i == COMP_CWORD - 1)) || _megalith_is_list "--${name//-/_}" || option=''
      break
    done
  fi
  if [[ $option == --* ]]; then
    option=${option#--}
    local values
    values=$(_megalith_values "--${option//-/_}")
    if [[ $values == FILE ]]; then
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
    elif [[ $values == NONE ]]; then
      return
    elif [[ -n $values ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
      return
    fi
  fi
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "$(_megalith_commands) --help --version" -- "$word")
    return
  fi
  local command=${COMP_WORDS[1]} topics names
  topics=$(_megalith_topics "$command")
  names=$(_megalith_options "$command")
  if [[ " $topics " == *" ${COMP_WORDS[2]} "* ]] && ((COMP_CWORD > 2)); then
    names=$(_megalith_options "$command ${COMP_WORDS[2]}")
  elif ((COMP_CWORD == 2)); then
    names="$topics $names"
  fi
  # Dashes within a name, as Megatron's scripts write it.
  if [[ ${word#--} == *-* ]]; then
    names=${names//_/-}
  fi
  mapfile -t COMPREPLY < <(compgen -W "$names" -- "$word")
}
complete -F _megalith megalith
)";

constexpr const char* kZsh = R"(_megalith() {
  local word=$words[CURRENT] before=$words[CURRENT-1] option=''
  local -a names
  if [[ $word == --*=* ]]; then
    option=${word%%=*}
    compset -P '*='
  elif [[ $word != --* && $before == --* ]]; then
    option=$before
  fi
  if [[ -n $option ]]; then
    option=${option#--}
    names=(${=$(_megalith_values "--${option//-/_}")})
    case "$names" in
      FILE) _files; return ;;
      NONE) return ;;
      ?*) compadd -a names; return ;;
    esac
  fi
  if (( CURRENT == 2 )); then
    names=(${=$(_megalith_commands)} --help --version)
    compadd -a names
    return
  fi
  local command=$words[2] topics
  topics=$(_megalith_topics $command)
  names=(${=$(_megalith_options $command)})
  if (( CURRENT > 3 )) && [[ " $topics " == *" $words[3] "* ]]; then
    names=(${=$(_megalith_options "$command $words[3]")})
  elif (( CURRENT == 3 )); then
    names=(${=topics} $names)
  fi
  # Dashes within a name, as Megatron's scripts write it.
  if [[ ${word#--} == *-* ]]; then
    names=(${names//_/-})
  fi
  compadd -a names
}
compdef _megalith megalith
)";

std::string bash_script(const std::vector<CompletedCommand>& commands) {
  return "# Completion of megalith for bash. Made by 'megalith completion bash'; for this shell:\n"
         "#   eval \"$(megalith completion bash)\"\n\n" +
         shell_tables(commands) + kBash;
}

std::string zsh_script(const std::vector<CompletedCommand>& commands) {
  return "#compdef megalith\n# Completion of megalith for zsh. Made by 'megalith completion zsh'; behind compinit:\n"
         "#   source <(megalith completion zsh)\n\n" +
         shell_tables(commands) + kZsh;
}

std::string fish_script(const std::vector<CompletedCommand>& commands) {
  std::string script =
      "# Completion of megalith for fish. Made by 'megalith completion fish'; for this shell:\n"
      "#   megalith completion fish | source\n\ncomplete -c megalith -f\n";
  std::map<std::string, std::vector<std::string>> owners;  // the commands of an option
  for (const CompletedCommand& command : commands) {
    script += fmt::format("complete -c megalith -n __fish_use_subcommand -a {} -d {}\n", command.name,
                          quoted(command.summary));
    for (const std::string& topic : command.topics) {
      script += fmt::format("complete -c megalith -n '__fish_seen_subcommand_from {}' -a {}\n", command.name, topic);
    }
    for (const auto& [where, words] : command.options) {
      for (const OptionWord& word : words) {
        std::vector<std::string>& names = owners[word.name];
        if (std::find(names.begin(), names.end(), command.name) == names.end()) names.push_back(command.name);
      }
    }
  }
  for (const auto& [name, values] : completed_values(commands)) {
    std::string how;
    if (!values.is_switch) {
      how = values.takes_file && values.words.empty() ? " -r -F" : " -x";
      if (!values.words.empty())
        how += fmt::format(" -a {}", quoted(join({values.words.begin(), values.words.end()}, " ")));
    }
    script += fmt::format("complete -c megalith -n '__fish_seen_subcommand_from {}' -l {}{} -d {}\n",
                          join(owners[name], " "), name, how, quoted(values.meaning));
  }
  return script;
}

}  // namespace

int run_completion(CommandContext& context) {
  constexpr const char* kUsage =
      "usage: megalith completion bash | zsh | fish\n\n"
      "Prints a script. For the shell that is open:\n\n"
      "  bash   eval \"$(megalith completion bash)\"\n"
      "  zsh    source <(megalith completion zsh)\n"
      "  fish   megalith completion fish | source\n\n"
      "For every new shell, write the script to\n\n"
      "  bash   ~/.local/share/bash-completion/completions/megalith\n"
      "  zsh    _megalith in a folder of $fpath\n"
      "  fish   ~/.config/fish/completions/megalith.fish\n";
  if (context.wants_help()) {
    print_out("{}", kUsage);
    return kExitSuccess;
  }
  if (context.arguments.size() != 1) throw UserError("completion takes the name of one shell", kUsage);
  const std::vector<CompletedCommand> commands = completed_commands(context.all_commands);
  const std::string& shell = context.arguments[0];
  if (shell == "bash") {
    print_out("{}", bash_script(commands));
  } else if (shell == "zsh") {
    print_out("{}", zsh_script(commands));
  } else if (shell == "fish") {
    print_out("{}", fish_script(commands));
  } else {
    throw UserError(fmt::format("completion knows no shell '{}'", shell), "name bash, zsh or fish");
  }
  return kExitSuccess;
}

std::vector<CommandOptions> completion_options() { return {{"completion", {}, {}}}; }

}  // namespace megalith

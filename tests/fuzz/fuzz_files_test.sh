#!/usr/bin/env bash
# Fuzzes the readers of files with libFuzzer: fuzz_files_test.sh <repository> <folder of sherd/> <seconds> [target...].
# The seconds are those of all targets together. Prints a line PASS, FAIL or SKIP for each. What is found is left in
# $SHERD_FUZZ_KEEP, if that is set.
set -u
root=$(readlink -f "${1:?usage: fuzz_files_test.sh <repository> <folder of sherd/> <seconds> [target...]}")
include=$2 seconds=$3
shift 3
what="files, $seconds s of libFuzzer"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1
# shellcheck source=tests/fuzz/fuzz_lib.sh
. tests/fuzz/fuzz_lib.sh

fuzz_needs_clang
[ $# -gt 0 ] || set -- safetensors json manifest index config tokenizer wordpiece token_file json_lines dataset
sources=(tests/fuzz/{input_files,state_targets,model_targets,data_targets,llm_targets}.cc)
sources+=(runtime/base/{json_text,utf8}.cc runtime/io/{json,json_write,mapped_file,safetensors,safetensors_index}.cc)
sources+=(shard/internal/state_manifest.cc)
sources+=(examples/data/{added_tokens,bert_text,bpe_tokenizer,bpe_tokenizer_load,byte_letters,code_points,documents}.cc)
sources+=(examples/data/{json_fields,json_lines,text_split,token_file,unicode_classes,unicode_tables_classes}.cc)
sources+=(examples/data/{unicode_tables_nfd,unicode_text,wordpiece_tokenizer,wordpiece_tokenizer_load}.cc)
sources+=(examples/data/{byte_tokenizer,packing,sample_list}.cc)
sources+=(examples/llm/{dataset,tokenizer_files}.cc)
sources+=(examples/llm/models/{activation,bert_config,config_reader,gpt2_config,llama_config,model_config}.cc)
for target in "$@"; do
  play=$(sed -n "s/.*{\"$target\", \(Play[A-Za-z]*\)}.*/\1/p" tests/fuzz/targets.h)
  cat > "$work/play_$target.cc" << END
#include "tests/fuzz/targets.h"
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, decltype(sizeof(0)) size) {
  sherd::fuzz::$play({reinterpret_cast<const char*>(data), size});
  return 0;
}
END
done
(cd "$work" && fuzz_objects -I "$root/examples" "${sources[@]/#/$root/}" play_*.cc) || exit 1
mapfile -t objects < <(printf '%s\n' "${sources[@]##*/}" | sed "s|^|$work/|; s|cc$|o|")
failed=0
for target in "$@"; do
  fuzz_compile "$work/play_$target.o" "${objects[@]}" -o "$work/fuzz_$target"
  what="$target, $((seconds / $#)) s of libFuzzer"
  fuzz_run "$work/fuzz_$target" $((seconds / $#)) "tests/fuzz/corpus/$target" || failed=1
done
exit $failed

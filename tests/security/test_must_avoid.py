"""The must-avoid list: one line for each of its items with the tests that show it, all named here.

What source can show is tested here; behaviour is tested beside the code that behaves, and by
`test_hostile_input.py`, `test_peak_memory.py` and the fuzzed inputs.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = tuple(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
SHIPPED = tuple(package for package in PACKAGES if package != "bench")
Found = list[str]

_HERE = "security/test_must_avoid.py"
_HOSTILE = "security/test_hostile_input.py"
_TRUST = "ternmesh/trust/test_must_avoid.py"
_NONCES = "ternmesh/trust/test_nonces.py"
_LINK = "ternmesh/link/test_link.py"
_ONNX = "edge/test_onnx_check.py"
_BROKER = "ternmesh_cli/test_broker_access.py"
_CORPUS = "test_fuzz_corpus.py"
# What the library was found to accept, and what it or another reader once fell over.
CBOR_CASES = (
    *("a regular expression", "a MIME message", "a cycle of shared references"),
    *("a bignum of a megabyte", "trailing junk", "an integer longer than needed"),
    *("21 megabytes of nesting", "21 megabytes of nested maps", "an array of 2**64 - 1"),
    *("bytes of 2**63", "text of 2**32", "a map of 2**40", "read of minus one"),
    *("a set that hashes to one place", "a tag in a tag", "a tag that is its own key"),
    *("a shared reference to nothing", "a string reference", "a text of 128 KiB"),
    *("a letter across a chunk of 64 KiB", "an indefinite array", "duplicate keys"),
)
ONNX_CASES = (
    *("external data above the folder", "external data by an absolute path"),
    *("external data through a symlink", "external data in the current directory"),
    *("external data beside the file", "external data without a location"),
    *("an initializer that is too short", "an initializer of enormous axes"),
    *("MatMulNBits of another domain", "Attention of another domain"),
    *("functions 3,000 deep", "a ConstantOfShape bomb", "an Expand bomb", "a Pad bomb"),
    *("a loop", "an If 20 deep", "fields 10,000 deep", "two graphs", "half a file"),
)
# By number and words of the list: the tests, as file::function, or file::TABLE[case].
MUST_AVOID = {
    "1 pickle, joblib, persist-queue, torch.load, .pt2": (f"{_HERE}::test_nothing_is_unpickled",),
    "1 numpy allow_pickle": (
        f"{_HERE}::test_arrays_of_objects_are_never_loaded",
        f"{_HOSTILE}::test_an_array_of_objects_is_not_unpickled",
    ),
    "1 yaml.load": (f"{_HERE}::test_no_text_is_run_as_code_nor_yaml_loaded",),
    "2 allocation by a claimed length": (
        "security/test_peak_memory.py::test_refusing_takes_no_more_than_twice_what_is_declared",
        "ternmesh/wire/test_memory.py::test_the_peak_while_refusing_is_bounded",
        f"{_ONNX}::test_the_peak_while_refusing_is_bounded",
        f"{_TRUST}::test_must_avoid_02_no_memory_by_a_claimed_length",
        f"{_CORPUS}::test_no_input_takes_more_memory_than_is_declared",
    ),
    "2 no cap on count x size, fragments": (
        "ternmesh/wire/test_reference.py::test_hostile_objects_are_refused",
        "ternmesh/wire/test_pieces.py::test_why_a_piece_is_refused",
        f"{_LINK}::test_no_object_has_more_symbols_than_the_code",
        "ternmesh/wire/test_control.py::test_a_plan_of_33_numbers_is_refused",
    ),
    "2 no cap on peers": (
        "ternmesh/swarm/test_coordinator.py::test_a_host_has_room_for_so_many",
        "ternmesh/trust/test_roster.py::test_a_roster_is_bounded",
        f"{_TRUST}::test_must_avoid_02_strangers_leave_no_trace",
    ),
    "2 no cap on open reassemblies": (f"{_LINK}::test_offers_of_many_peers_are_bounded",),
    "2 no cap on per-peer bytes": (
        f"{_LINK}::test_memory_for_objects_is_bounded_with_their_coefficients",
        f"{_LINK}::test_early_symbols_are_bounded",
        f"{_LINK}::test_answers_and_names_are_bounded",
        "ternmesh/swarm/test_member.py::test_a_strangers_words_take_a_bounded_place",
        "transports/test_loopback.py::test_an_inbox_is_bounded_by_count_and_by_bytes",
    ),
    "3 recursion, nesting > 8": (
        f"{_HOSTILE}::CBOR[21 megabytes of nesting]",
        f"{_HOSTILE}::CBOR[arrays nine deep]",
        f"{_ONNX}::HOSTILE[fields 10,000 deep]",
        f"{_HOSTILE}::test_texts_that_nest_deep_are_refused",
    ),
    "3 hostile CBOR of the research": tuple(f"{_HOSTILE}::CBOR[{case}]" for case in CBOR_CASES),
    "3 indefinite lengths": (f"{_HOSTILE}::CBOR[an indefinite array]",),
    "3 tags": (
        f"{_HOSTILE}::CBOR[a regular expression]",
        f"{_HOSTILE}::CBOR[a date]",
        f"{_HOSTILE}::CBOR[a tag that nobody has registered]",
    ),
    "3 duplicate keys": (f"{_HOSTILE}::CBOR[duplicate keys]",),
    "3 trailing bytes": (
        f"{_HOSTILE}::CBOR[trailing junk]",
        f"{_HOSTILE}::test_nothing_signed_has_bytes_left_over",
    ),
    "3 non-canonical forms in signed data": (
        f"{_HOSTILE}::CBOR[an integer longer than needed]",
        f"{_TRUST}::test_must_avoid_03_signed_things_have_one_form",
        "ternmesh/test_release.py::test_a_changed_manifest_is_refused_or_another",
        f"{_CORPUS}::test_what_is_no_value_is_our_own_error",
    ),
    "4 decompression without an output and a ratio cap": (
        f"{_HERE}::test_nothing_that_arrives_is_decompressed",
        "edge/test_sources.py::test_an_array_beyond_the_limit_is_refused_before_it_is_read",
        f"{_HOSTILE}::test_an_npz_bomb_costs_no_memory",
    ),
    "5 external_data of any kind": (
        f"{_ONNX}::HOSTILE[external data above the folder]",
        f"{_ONNX}::HOSTILE[external data by an absolute path]",
        f"{_ONNX}::HOSTILE[external data through a symlink]",
        f"{_ONNX}::HOSTILE[external data in the current directory]",
        f"{_ONNX}::HOSTILE[an external location in 64 bits]",
    ),
    "5 hostile ONNX of the research": tuple(f"{_ONNX}::HOSTILE[{case}]" for case in ONNX_CASES),
    "5 custom operators and domains": (
        f"{_ONNX}::HOSTILE[a custom operator]",
        f"{_ONNX}::HOSTILE[MatMulNBits of another domain]",
        f"{_ONNX}::HOSTILE[Attention of another domain]",
    ),
    "5 functions": (
        f"{_ONNX}::HOSTILE[functions 3,000 deep]",
        f"{_ONNX}::HOSTILE[a function that calls itself]",
    ),
    "5 operators outside an allow-list": (
        f"{_ONNX}::HOSTILE[a loop]",
        f"{_ONNX}::test_every_operator_of_the_list_is_one_of_onnx",
    ),
    "5 initializers whose bytes are not prod(dims) * size": (
        f"{_ONNX}::HOSTILE[an initializer that is too short]",
        f"{_ONNX}::HOSTILE[an initializer that is too long]",
        f"{_ONNX}::HOSTILE[axes whose product overflows]",
    ),
    "5 the version converter": (f"{_HERE}::test_no_model_is_converted_nor_read_by_other_ways",),
    "5 a model that the trusted host has not signed": (
        "edge/test_releases.py::test_nothing_is_taken_unless_its_signatures_are_good",
        "ternmesh_cli/test_release_command.py::test_a_board_takes_what_its_host_has_signed",
    ),
    "5 a first load outside a child with RLIMIT_AS and RLIMIT_CPU": (
        "edge/test_model_trial.py::test_a_memory_bomb_is_refused_and_does_not_take_the_parent",
        "edge/test_model_trial.py::test_a_loop_is_ended_by_the_limit_of_processor_time",
        "edge/test_rollout.py::"
        "test_a_release_that_is_hostile_or_slow_to_load_is_refused_by_the_child",
    ),
    "5 a ConstantOfShape bomb of 77 bytes": (f"{_ONNX}::test_the_bomb_of_77_bytes_is_that_small",),
    "6 zip and tar extraction": (f"{_HERE}::test_no_archive_is_extracted",),
    "6 a path from a peer": (
        f"{_HOSTILE}::test_a_name_from_a_peer_is_neither_path_nor_topic",
        "edge/test_releases.py::test_other_files_of_a_source_stay_where_they_are",
        "transports/test_mqtt_settings.py::test_a_peer_cannot_smuggle_a_topic",
    ),
    "7 a key id chosen by the sender, accepted first-come": (
        f"{_TRUST}::test_must_avoid_07_a_key_that_comes_first_is_not_believed",
        "ternmesh/trust/test_enrolment.py::test_first_contact_with_a_code_replaces_no_key",
    ),
    "7 a key overwritten without the old key's signature": (
        f"{_TRUST}::test_must_avoid_07_a_known_key_is_overwritten_only_by_its_owner",
        "ternmesh/trust/test_roster.py::test_a_rotation_needs_the_old_key_and_the_new_one",
    ),
    "7 a downgrade of algorithm or mode": (
        f"{_TRUST}::test_must_avoid_07_no_way_down_to_the_open_suite",
        f"{_TRUST}::test_must_avoid_07_the_header_cannot_be_changed",
        f"{_HOSTILE}::test_a_frame_of_a_suite_that_is_not_in_use_is_not_taken_for_an_open_one",
        "edge/test_releases.py::test_a_downgrade_is_refused",
    ),
    "7 plaintext fallback": (
        f"{_TRUST}::test_must_avoid_07_an_end_without_a_key_sends_no_plain_text",
        "ternmesh_store/test_keyring.py::"
        "test_doing_without_keys_off_this_machine_takes_saying_it_twice",
        f"{_BROKER}::test_the_port_speaks_tls_only",
    ),
    "8 a nonce used twice after power loss": (
        f"{_NONCES}::test_must_avoid_08_ten_thousand_power_cuts_between_reserve_and_use",
        f"{_LINK}::test_no_seal_counter_is_used_before_it_is_reserved",
    ),
    "8 a nonce used twice after a copy of the SD card": (
        f"{_NONCES}::test_must_avoid_08_a_copied_card_in_a_second_board",
        f"{_NONCES}::test_must_avoid_08_a_host_copied_with_its_broadcast_key",
    ),
    "8 counters stored less often than reserved": (
        "ternmesh/swarm/test_outgoing.py::test_nothing_leaves_before_its_counter_is_reserved",
        "ternmesh/swarm/test_outgoing.py::test_a_restart_goes_on_behind_the_block",
    ),
    "9 a replay window that a reboot resets": (
        f"{_TRUST}::test_must_avoid_09_the_window_is_not_reset_by_a_reboot",
        f"{_TRUST}::test_must_avoid_09_a_broadcast_is_not_heard_twice_over_a_reboot",
        f"{_TRUST}::test_must_avoid_09_the_window_moves_only_behind_the_tag",
        "ternmesh_store/test_keyring.py::test_sessions_and_windows_are_found_again",
    ),
    "10 a tag of fewer than 8 bytes": (
        f"{_TRUST}::test_must_avoid_10_every_frame_has_8_bytes_of_tag",
    ),
    "10 a tag compared with ==": (
        f"{_HERE}::test_what_proves_knowledge_of_a_secret_is_not_compared_with_equals",
        f"{_TRUST}::test_must_avoid_10_no_secret_is_compared_with_equals",
    ),
    "10 encryption without a tag, ECB": (
        f"{_HERE}::test_no_cipher_comes_without_a_tag",
        f"{_TRUST}::test_must_avoid_10_the_same_body_never_looks_the_same",
    ),
    "11 a PUBACK taken for durability": (
        "ternmesh/swarm/test_member.py::test_a_packet_is_sent_until_its_receipt",
        "bench/test_mqtt_bench.py::test_a_message_stays_in_the_outbox_until_its_receipt",
        "bench/test_mqtt_bench.py::test_nothing_is_lost_or_doubled_while_the_broker_is_killed",
    ),
    "11 retained messages, $SYS and wildcards of a node": (
        f"{_BROKER}::test_nobody_leaves_a_retained_message",
        f"{_BROKER}::test_a_node_reads_its_own_topics_whatever_it_subscribes_to",
        f"{_BROKER}::test_a_node_cannot_publish_as_another_nor_as_the_host",
    ),
    "11 an anonymous broker": (f"{_BROKER}::test_strangers_are_refused",),
    "11 no max_packet_size": (
        f"{_BROKER}::test_a_packet_beyond_the_limit_is_refused_and_ours_stay_below",
        "ternmesh_cli/test_broker_config.py::"
        "test_the_configuration_says_what_may_not_be_left_to_defaults",
    ),
    "12 NaN, infinity, huge scales": (
        f"{_HOSTILE}::test_no_scale_is_nan_infinite_or_huge",
        f"{_HOSTILE}::test_no_share_outweighs_what_the_plan_allows",
        f"{_HOSTILE}::test_a_board_whose_training_diverged_sends_nothing",
        "ternmesh/swarm/test_intake.py::test_why_bodies_are_refused",
    ),
    "13 errors that end the loop that reads": (
        "ternmesh_cli/test_fleet.py::test_bad_input_is_counted_with_its_reason_and_costs_no_round",
        f"{_TRUST}::test_must_avoid_13_no_error_of_the_library_comes_through",
        f"{_CORPUS}::test_what_is_no_value_is_our_own_error",
    ),
    "13 logs with payloads or keys": (
        f"{_HERE}::test_no_log_line_is_given_a_payload_or_a_key",
        f"{_HOSTILE}::test_logs_hold_no_payload_and_no_password",
        f"{_TRUST}::test_must_avoid_13_no_key_is_shown",
    ),
    "14 the package oqs": (
        f"{_HERE}::test_packages_that_are_not_what_they_seem_are_no_dependencies",
        f"{_TRUST}::test_must_avoid_14_one_library_in_one_file",
    ),
    "15 code downloaded at import": (
        f"{_HERE}::test_importing_does_nothing_but_import",
        f"{_HERE}::test_nothing_but_a_users_command_reaches_for_the_network",
    ),
}
ITEMS = 15


@cache
def _nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Every node of every file, with the file's name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    named = ((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Compare, ast.Attribute)
    return tuple(
        (name, node) for name, tree in named for node in ast.walk(tree) if isinstance(node, kinds)
    )


@cache
def _calls() -> tuple[tuple[str, str, ast.Call], ...]:
    found = ((name, node) for name, node in _nodes() if isinstance(node, ast.Call))
    return tuple((f"{name}:{node.lineno}", ast.unparse(node.func), node) for name, node in found)


def nodes(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, ast.AST]]:
    return (item for item in _nodes() if item[0].partition("/")[0] in packages)


def imports(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, str]]:
    """Where a module is imported, and which, wherever in the file that stands."""
    for name, node in nodes(packages):
        if isinstance(node, ast.Import):
            yield from ((f"{name}:{node.lineno}", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            where = f"{name}:{node.lineno}"
            yield from ((where, f"{node.module}.{alias.name}") for alias in node.names)


def calls(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, str, ast.Call]]:
    return (item for item in _calls() if item[0].partition("/")[0] in packages)


def of(module: str, forbidden: set[str]) -> bool:
    return bool({module, module.split(".")[0]} & forbidden)


def test_nothing_is_unpickled() -> None:
    modules = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve"}
    modules |= {"marshal", "persistqueue", "jsonpickle", "torch.load", "torch.export.load"}
    assert [item for item in imports() if of(item[1], modules)] == []
    functions = {
        "torch.load",
        "torch.jit.load",
        "torch.export.load",
        "torch.package",
        "read_pickle",
    }
    assert [where for where, called, _ in calls() if called in functions] == []


def test_arrays_of_objects_are_never_loaded() -> None:
    for where, _, node in calls():
        for keyword in node.keywords:
            if keyword.arg in ("allow_pickle", "weights_only"):
                wanted = "False" if keyword.arg == "allow_pickle" else "True"
                assert ast.unparse(keyword.value) == wanted, where


def test_models_of_a_hub_bring_no_code() -> None:
    for where, called, node in calls(SHIPPED):
        if called.endswith("from_pretrained"):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("trust_remote_code", "False") == "False", where


def test_no_text_is_run_as_code_nor_yaml_loaded() -> None:
    assert [item for item in imports() if of(item[1], {"yaml", "ruamel", "code", "codeop"})] == []
    functions = {"eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "__import__"}
    assert [(where, called) for where, called, _ in calls() if called in functions] == []


def test_no_shell_is_asked() -> None:
    for where, _, node in calls():
        for keyword in node.keywords:
            assert keyword.arg != "shell" or ast.unparse(keyword.value) == "False", where


def test_no_archive_is_extracted() -> None:
    """`zipfile` tells whether a file is an .npz, and names its error; numpy reads it by name."""
    allowed = {"is_zipfile", "BadZipFile"}
    found: Found = []
    for name, node in nodes():
        if isinstance(node, ast.Attribute):
            of_zip = isinstance(node.value, ast.Name) and node.value.id == "zipfile"
            opened = of_zip and node.attr not in allowed and name.split("/")[0] in SHIPPED
            if opened or node.attr in ("extractall", "extract"):
                found.append(f"{name}:{node.lineno} {node.attr}")
    assert found == []
    assert [item for item in imports() if of(item[1], {"tarfile", "shutil.unpack_archive"})] == []
    assert [where for where, called, _ in calls() if "unpack_archive" in called] == []


def test_nothing_that_arrives_is_decompressed() -> None:
    """Data sets of a benchmark may be .gz; no packet, message or bundle is."""
    modules = {"bz2", "lzma", "zstandard", "brotli", "lz4", "snappy", "gzip"}
    reachable = ("ternmesh", "ternmesh_store", "transports", "edge")
    assert [item for item in imports(reachable) if of(item[1], modules)] == []
    assert [where for where, called, _ in calls() if called.startswith("zlib.decompress")] == []


# What runs on a board or reads what came from outside; `models` exports on the owner's machine.
BOARD = ("ternmesh", "ternmesh_store", "transports", "edge", "host", "ternmesh_cli")


def test_no_model_is_converted_nor_read_by_other_ways() -> None:
    """Models reach onnxruntime through one module, as files that were checked, or not at all."""
    modules = {"onnx", "onnx_ir", "onnxscript", "onnxruntime"}
    found = {where.partition(":")[0] for where, name in imports(BOARD) if of(name, modules)}
    assert found == {"edge/session.py"}
    unwanted = ("convert_version", "external_data", "from_external", "to_external")
    everywhere = chain(
        ((w, n) for w, n in imports(SHIPPED)), ((w, c) for w, c, _ in calls(SHIPPED))
    )
    assert [item for item in everywhere if any(word in item[1] for word in unwanted)] == []
    loaded = [node for _, called, node in calls(BOARD) if called.endswith("InferenceSession")]
    # From bytes, data outside the file would be looked for in the current directory.
    assert [ast.unparse(node.args[0]) for node in loaded] == ["str(path)"]


def test_no_cipher_comes_without_a_tag() -> None:
    """Of ciphers there is AES-CCM alone; whoever adds one has to come by here."""
    primitives = "cryptography.hazmat.primitives."
    allowed = {"ciphers.aead.AESCCM", "hashes", "hashes.SHA256", "kdf.hkdf.HKDF"}
    kinds = ("asymmetric.", "serialization.")  # signatures and key agreement; PEM files
    for where, name in imports(SHIPPED):
        if name.startswith(primitives):
            short = name.removeprefix(primitives)
            assert short in allowed or short.startswith(kinds), (where, name)
    assert [item for item in imports() if of(item[1], {"Crypto", "Cryptodome", "nacl"})] == []


def test_packages_that_are_not_what_they_seem_are_no_dependencies() -> None:
    unwanted = {"oqs", "liboqs-python", "pycose", "ecdsa", "persist-queue", "joblib", "pyyaml"}
    unwanted |= {"rns", "lxmf", "meshtastic", "onnxruntime-training"}
    project = PROJECT["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    names = {re.split(r"[\[>=;<~! ]", line)[0] for line in (*project["dependencies"], *extras)}
    assert {name.lower() for name in names} & unwanted == set()
    assert [item for item in imports() if of(item[1], {"oqs", "ecdsa", "RNS", "LXMF"})] == []


# A comparison that ends at the first other byte tells how far a guess was right. These compare
# nothing that is secret.
NOT_SECRET = {
    "tag != _tag(content)": "suite 0 has no key: its tag finds damage and nothing else",
}
SECRETS = ("tag", "mac", "password", "secret", "token", "proof")


def test_what_proves_knowledge_of_a_secret_is_not_compared_with_equals() -> None:
    found: Found = []
    for name, node in nodes(SHIPPED):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops):
            continue
        sides = (node.left, *node.comparators)
        words = {word for side in sides for word in _words(side)}
        is_constant = any(isinstance(side, ast.Name) and side.id.isupper() for side in sides)
        text = ast.unparse(node)
        if words & set(SECRETS) and not is_constant and text not in NOT_SECRET:
            found.append(f"{name}:{node.lineno} {text}")
    assert found == []


def _words(side: ast.expr) -> set[str]:
    """The parts of the name that a side of a comparison ends in."""
    if isinstance(side, ast.Call):
        side = side.func
    name = side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "")
    return set(str(name).lower().strip("_").split("_"))


def test_no_log_line_is_given_a_payload_or_a_key() -> None:
    """Lengths and counts may be logged; bytes that came, and what is secret, may not."""
    levels = {"debug", "info", "warning", "error", "critical", "exception", "log"}
    secret = {"payload", "password", "body", "frame", "secret", "private", "seed", "plaintext"}
    found: Found = []
    for where, called, node in calls(SHIPPED):
        if called.rpartition(".")[2] in levels and called.startswith(("_log.", "log.", "logging.")):
            for argument in node.args[1:]:
                if _words(argument) & secret and not isinstance(argument, ast.Call):
                    found.append(f"{where} {ast.unparse(argument)}")
    assert found == []


def test_nothing_but_a_users_command_reaches_for_the_network() -> None:
    """Bearers have their own libraries; nothing of ours fetches a page or a file."""
    modules = {"urllib.request", "requests", "httpx", "aiohttp", "ftplib", "http.client"}
    found = [item for item in imports(SHIPPED) if {item[1], item[1].rpartition(".")[0]} & modules]
    assert found == []


def test_importing_does_nothing_but_import() -> None:
    """No connection, no program, no file: who imports a decoder wants nothing else."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("ternmesh", "ternmesh_store", "transports", "edge")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]
    script = f"""
import importlib, sys
stop = ("socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.mkdir", "os.remove")
def hook(event, arguments):
    if watching and event in stop:
        raise SystemExit(f"{{event}} at import: {{arguments}}")
    if watching and event == "open" and arguments[1] and set(str(arguments[1])) & set("wax+"):
        raise SystemExit(f"a file is written at import: {{arguments}}")
sys.dont_write_bytecode = True
watching = False
for name in ("numpy", "onnxruntime", "bleak", "bumble", "serial", "paho.mqtt.client", "amqtt"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
sys.addaudithook(hook)
watching = True
for name in {names!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@cache
def names_of(path: str) -> frozenset[str]:
    """The tests of a file, and the cases of its tables as TABLE[case]."""
    names: set[str] = set()
    for node in ast.parse((ROOT / "tests" / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
            names |= {f"{ast.unparse(target)}[{key}]" for key in keys}
    return frozenset(names)


@pytest.mark.parametrize("item", MUST_AVOID)
def test_each_item_of_the_list_has_its_tests(item: str) -> None:
    assert MUST_AVOID[item]
    for named in MUST_AVOID[item]:
        path, _, name = named.partition("::")
        assert name in names_of(path), named


def test_no_item_of_the_list_is_left_out() -> None:
    assert {int(item.partition(" ")[0]) for item in MUST_AVOID} == set(range(1, ITEMS + 1))

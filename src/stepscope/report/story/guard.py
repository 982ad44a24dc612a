"""What keeps trials from the user's files, in words."""

from stepscope.record.probe_options import Wall

WALL_TEXTS = {
    Wall.NAMESPACES: "write only to their own folders (mount namespace)",
    Wall.LANDLOCK: "write only to their own folders (Landlock)",
    Wall.NONE: "not guarded by the kernel: tune and batch ask for --unguarded",
}
UNGUARDED = (
    "unguarded: trials are stopped before Python writes outside their folder; programs they start,"
    " native code, sockets and FIFOs are not"
)

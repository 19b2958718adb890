"""Branches on the screen: a message is edited in the prompt, answered anew, gone on with, deleted; siblings are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.widget import Widget
from textual.widgets import Static

from outrider.app.chat.context import cut_words, is_full, why_not_carry_over
from outrider.app.chat.input.attach import with_attachments
from outrider.app.chat.input.keeping import add
from outrider.app.chat.session import BUSY, Session, State
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.chat.transcript import UserMessage
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Attachment

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen

_RUNS = "a reply is being written; esc stops it"
_EMPTY = "nothing was said here yet"


@dataclass(slots=True)
class _Editing:
    """A message in the prompt, or the reply to it, and what stood there before."""

    chat: Chat
    turn: Turn
    reply: bool = False
    draft: str = ""
    attachments: tuple[Attachment, ...] = ()
    line: Static | None = None


class Branching:
    """Works on the message that has the focus, else on the last one."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._editing: _Editing | None = None
        self._counted: object = None
        screen.stage.heads.append(self._count)

    # ------------------------------------------------------------------------------------------------ which message

    def turn(self) -> Turn | None:
        """The turn of the focused message, else the last one that was not refused."""
        focused, turns = self._screen.focused, self._screen.session.chat.turns
        if isinstance(focused, UserMessage):
            return focused.turn if focused.turn in turns else None
        reply = getattr(focused, "reply", None)
        found = [turn for turn in turns if not turn.failed and (reply is None or turn.reply is reply)]
        return found[-1] if found else None

    def node(self) -> str:
        """The name of the focused message, else of the last one; empty if there is none."""
        turn = self.turn()
        if turn is None:
            return ""
        reply = None if isinstance(self._screen.focused, UserMessage) else turn.reply
        return reply.node if reply is not None else turn.node

    def widget(self, node: str) -> Widget | None:
        """What shows a message."""
        turn = self._screen.session.chat.turn_of(node)
        if turn is None:
            return None
        transcript = self._screen.transcript
        return transcript.message_of(turn) if node == turn.node else transcript.view_of(turn)

    def _waiting(self) -> Turn | None:
        """The focused message, if it was not sent yet."""
        focused = self._screen.focused
        waits = isinstance(focused, UserMessage) and focused.turn in self._screen.session.queue
        return focused.turn if waits and isinstance(focused, UserMessage) else None

    def _busy(self) -> bool:
        return self._screen.session.state in BUSY

    # ------------------------------------------------------------------------------------------------ why not

    def why_not_edit(self) -> str:
        """Why no message can be edited, empty if one can."""
        turn = self.turn()
        if self._waiting() is not None:
            return ""
        if turn is None or turn.node not in self._screen.session.chat.tree:
            return _EMPTY
        return "" if turn.said else "nothing was asked before this reply"

    def why_not_go_on(self) -> str:
        """Why the reply cannot go on."""
        turn = self.turn()
        if self._busy():
            return _RUNS
        if turn is None or turn.reply is None:
            return "there is no reply yet"
        if turn.reply.end is End.WHOLE:
            return "this reply is complete"
        if turn.reply.can_go_on and is_full(turn.reply, self._screen.session.branches.room):
            return "the context is full; /new begins a new chat, /carry-over one with the newest turns"
        if self._screen.session.branches.can_go_on(turn) is None:
            return "only the last reply can go on" if turn.reply.can_go_on else "nothing of it has come"
        return ""

    def why_not_choose(self) -> str:
        """Why no other branch can be shown."""
        if self._busy():
            return _RUNS
        return "" if self._fork() else "there are no branches here"

    def why_not_branch(self) -> str:
        """Why no new chat can begin here."""
        if self._waiting() is not None:
            return "this message waits"
        if self._screen.session.options.private:
            return "a private chat is the only one"
        return self.why_not_delete()

    def why_not_carry_over(self) -> str:
        """Why no new chat can begin with the newest turns."""
        return _RUNS if self._busy() else why_not_carry_over(self._screen.session)

    def why_not_delete(self) -> str:
        """Why no message can be deleted."""
        if self._waiting() is not None:
            return ""
        if self._busy():
            return _RUNS
        return "" if self.node() in self._screen.session.chat.tree else _EMPTY

    def why_not_look(self) -> str:
        """Why there is no tree to be seen."""
        return "" if len(self._screen.session.chat.tree) else _EMPTY

    # ------------------------------------------------------------------------------------------------ edit

    def edit(self, words: str) -> None:
        """Take a message into the prompt, or the reply to it if `words` say so; what stands there comes back."""
        turn = self.turn()
        if (waiting := self._waiting()) is not None:
            self._screen.input.edit_waiting(waiting)
        elif words not in ("", "reply"):
            self._screen.stage.tell("/edit takes your message into the prompt, /edit reply what the model answered.")
        elif turn is not None and not words:
            told = f"Editing “{_words(turn.text)}”: enter makes it another branch, esc leaves"
            self._begin(_Editing(self._screen.session.chat, turn), turn.text, turn.attachments, told)
        elif turn is not None and turn.reply is not None and turn.reply.text and turn.reply.end is not End.NOT_YET:
            told = "Editing the reply: enter has the model go on from these words, esc leaves"
            self._begin(_Editing(self._screen.session.chat, turn, reply=True), turn.reply.text, (), told)
        else:
            self._screen.stage.flash("There is no reply to edit, or it is still being written")

    def _begin(self, editing: _Editing, text: str, attachments: tuple[Attachment, ...], told: str) -> None:
        self.leave()
        prompt = self._screen.prompt
        editing.draft, editing.attachments = prompt.text, prompt.attachments
        editing.line = Static(told, classes="editing", markup=False)
        self._editing = editing
        self._screen.query_one("#prompt-row").mount(editing.line, before=0)
        prompt.put(f"/{text}" if text.startswith("/") else text, attachments)
        prompt.focus()

    def leave(self) -> bool:
        """Edit no more; the draft comes back. False if nothing was edited."""
        editing, self._editing = self._editing, None
        if editing is None:
            return False
        if editing.line is not None:
            editing.line.remove()
        self._screen.prompt.put(editing.draft, editing.attachments)
        return True

    def take(self, text: str, attachments: tuple[Attachment, ...]) -> bool:
        """Whether what was sent is the edited message, which then goes its own way."""
        editing = self._editing
        if editing is None or editing.chat is not self._screen.session.chat:
            return False
        self.leave()
        branches = self._screen.session.branches
        if editing.reply:
            branches.rewrite(editing.turn, with_attachments(text, attachments))
        else:
            branches.edit(editing.turn, text, attachments)
        self._say_when()
        return True

    # ------------------------------------------------------------------------------------------------ answers

    def regenerate(self) -> None:
        """Another answer to the same message."""
        if (turn := self.turn()) is not None:
            self._screen.session.branches.regenerate(turn)
            self._say_when()
            self._screen.prompt.focus()

    def keep_going(self) -> None:
        """Have the model go on with its last reply."""
        if (turn := self.turn()) is not None:
            self._screen.session.branches.keep_going(turn)
            self._say_when()

    def _say_when(self) -> None:
        if self._screen.session.state not in (State.READY, *BUSY):
            self._screen.stage.flash("As soon as the engine is ready")

    # ------------------------------------------------------------------------------------------------ branches

    def _fork(self) -> str:
        """The focused message if it has siblings, else the last one shown that has."""
        tree = self._screen.session.chat.tree
        node = self.node()
        if self._screen.focused is not self._screen.prompt and node in tree:
            return node if len(tree.siblings(node)) > 1 else ""
        return next((knot.node for knot in reversed(tree.path(node)) if len(tree.siblings(knot.node)) > 1), "")

    def sideways(self) -> bool:
        """Whether the focused message has others beside it."""
        return not self._busy() and bool(self._fork())

    def choose(self, by: int) -> None:
        """Show the sibling `by` places further."""
        if node := self._fork():
            siblings = self._screen.session.chat.tree.siblings(node)
            place = siblings.index(node) + by
            if 0 <= place < len(siblings):
                self._screen.stage.spawn(self._go(node, siblings[place]))
            else:
                self._screen.stage.flash("This is the newest branch" if by > 0 else "This is the oldest branch")

    async def _go(self, old: str, new: str) -> None:
        """Show another branch; its first message takes the place of the old one on the screen, and its focus."""
        transcript, before = self._screen.transcript, self.widget(old)
        row = before.virtual_region.y - round(transcript.scroll_y) if before is not None else 0
        focused = before is not None and before.has_focus
        await self._screen.session.branches.choose(new)
        await self._settle(new, row, focus=focused)

    async def _settle(self, node: str, row: int, *, focus: bool) -> None:
        """Put a message `row` lines below the top of the window."""
        transcript = self._screen.transcript
        if (turn := self._screen.session.chat.turn_of(node)) is not None:
            await transcript.reveal(turn)
        widget = self.widget(node)
        if widget is None:
            return
        for view in list(self._screen.stage.live.values()):  # their heights must be known
            await view.paint()
        if focus:
            widget.focus(scroll_visible=False)

        def scroll() -> None:
            transcript.scroll_to(y=widget.virtual_region.y - row, animate=False, immediate=True)

        self._screen.call_after_refresh(scroll)

    def branch(self) -> None:
        """A new chat that begins with the messages down to here; what the user wrote here goes into its prompt."""
        self._screen.stage.spawn(self._branch())

    async def _branch(self) -> None:
        session, stage, node = self._screen.session, self._screen.stage, self.node()
        turn, knot = self.turn(), session.chat.tree[node]
        assert turn is not None
        upto = node if knot.of_model else knot.above
        name = session.chat.id
        try:
            made = await session.keeper.ask(lambda store: store.branch(name, upto)) if upto else ""
        except StoreError as error:
            stage.tell(" ".join(filter(None, (error.message, error.hint))))
            return
        if not upto:
            self._screen.new_chat()
        elif not await session.open_chat(made):
            return
        if not knot.of_model:
            add(self._screen.prompt, turn.text, turn.attachments)  # what was typed meanwhile stays
        self._screen.prompt.focus()
        stage.flash("A new chat that begins like the one before")

    def carry_over(self) -> None:
        """A new chat that begins with the newest turns; what stands in the prompt goes along."""
        self._screen.stage.spawn(self._carry_over())

    async def _carry_over(self) -> None:
        prompt, stage = self._screen.prompt, self._screen.stage
        text, attachments = prompt.text, prompt.attachments
        prompt.put("", ())
        try:
            told = await self._screen.session.branches.carry_over()
        except StoreError as error:
            told = " ".join(filter(None, (error.message, error.hint)))
        add(prompt, text, attachments)
        if told:
            stage.tell(told)
        prompt.focus()

    def delete(self) -> None:
        """Delete a message and what follows from it; one that waits is not sent."""
        if (waiting := self._waiting()) is not None:
            self._screen.input.drop_waiting(waiting)
            return
        self._screen.stage.spawn(self._delete(self.node()))

    def delete_either(self, words: str) -> None:
        """Delete the whole chat, or one message of it if `words` say so."""
        if not words:
            self._screen.shelf.delete()
        elif words != "message":
            self._screen.stage.tell(
                "/delete deletes this chat, /delete message the last message and what follows from it."
            )
        elif reason := self.why_not_delete():
            self._screen.stage.flash(f"Delete the message: {reason}")
        else:
            self.delete()

    def would_delete(self) -> str:
        """What deleting the focused message takes away."""
        if self._waiting() is not None:
            return "the message is not sent"
        count = len(self._screen.session.chat.tree.below(self.node()))
        return "deletes this message" if count == 1 else f"deletes this message and {count - 1} below it"

    async def _delete(self, node: str) -> None:
        tree = self._screen.session.chat.tree
        count = len(tree.below(node))
        await self._screen.session.branches.delete(node)
        what = "the message" if count == 1 else f"{count} messages"
        self._screen.stage.flash(f"Deleted {what}; /undo brings {'it' if count == 1 else 'them'} back")
        self._screen.prompt.focus()

    def look(self) -> None:
        """See all branches, and go to a message of any."""
        from outrider.app.chat.treeview import TreeScreen, lines

        chat = self._screen.session.chat
        self._screen.app.push_screen(TreeScreen(lines(chat, self.node())), self._look_at)

    def _look_at(self, node: str | None) -> None:
        if not node or node not in self._screen.session.chat.tree:
            return
        if self._busy() and self.widget(node) is None:
            self._screen.stage.flash(f"Another branch: {_RUNS}")
            return
        self._screen.stage.spawn(self._visit(node))

    async def _visit(self, node: str) -> None:
        if self._screen.session.chat.turn_of(node) is None:
            await self._screen.session.branches.choose(node)
        await self._settle(node, 1, focus=True)

    # ------------------------------------------------------------------------------------------------ what is told

    def _count(self, session: Session) -> None:
        """Once a frame: every message says which branch it is, where that may have changed."""
        editing = self._editing
        if editing is not None and editing.chat is not session.chat:
            self.leave()
        chat, children = session.chat, self._screen.transcript.children
        seen = (
            chat,
            len(chat.tree),
            chat.last_node(),
            session.state,
            session.branches.room,
            len(children),
            children[-1:] and children[-1],
        )
        if seen == self._counted:
            return
        self._counted = seen
        letters = self._screen.keymap.letters()
        letter = next((letter for letter, action in letters.items() if action.id == "keep_going"), "")
        hint = f"{letter or '/continue'} continue"
        for widget in children:
            if isinstance(widget, UserMessage):
                widget.placed(chat.tree.place(widget.turn.node))
            elif isinstance(reply := getattr(widget, "reply", None), Reply):
                turn = chat.turn_of(reply.node)
                can = turn is not None and not self._busy() and session.branches.can_go_on(turn) is not None
                told = cut_words(reply, session.branches.room), hint if can else ""
                widget.placed(chat.tree.place(reply.node), *told)  # type: ignore[attr-defined]


def _words(text: str) -> str:
    words = " ".join(text[:200].split())
    return words if len(words) <= 40 else f"{words[:39].rstrip()}…"
